"""Tensors that code names for another recorder, passed on with their gradients."""

import torch
from torch import nn

import hookstats as hs


def log_fwd_bwd_stats(module, **tensors):
    """Takes the place of the function of this name where a model's code has it."""
    for name, tensor in tensors.items():
        hs.observe(f"{names[module]}.{name}", tensor)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        xq, xk = self.q(x).relu(), self.k(x).relu()
        log_fwd_bwd_stats(self, xq=xq, xk=xk)
        return xq @ xk.mT


model = nn.Sequential(nn.Linear(8, 8), Mixer())
names = {module: name for name, module in model.named_modules()}
with hs.watch(model) as watch:
    model(torch.randn(4, 6, 8)).square().mean().backward()
    watch.step()
    found = [key for key in watch.latest if ".x" in key[0]]

print(found)
assert sorted(found) == [
    ("1.xk", "grad_output"),
    ("1.xk", "output"),
    ("1.xq", "grad_output"),
    ("1.xq", "output"),
]
