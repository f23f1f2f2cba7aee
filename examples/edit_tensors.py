"""Tensors looked at, changed and kept: a chain of edits, several backwards, a layer's tensors."""

import torch
from torch import nn

import hookstats as hs

# Double the gradient, print it, halve it, print it: edits run in the order of their calls.
printed = []


def show(gradient: torch.Tensor) -> None:
    print(gradient)
    printed.append(gradient.tolist())


v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
hs.edit(v, lambda gradient: gradient * 2)
hs.edit(v, show)
hs.edit(v, lambda gradient: gradient / 2)
hs.edit(v, show)
(v**2).sum().backward()
assert printed == [[4.0, 8.0, 12.0], [2.0, 4.0, 6.0]]

# Square it, as long as the block runs. backward(w) computes the product of w with the Jacobian.
v = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
with hs.edit(v, lambda gradient: gradient**2):
    v.backward(torch.tensor([1.0, 2.0, 3.0]))
print(v.grad)
assert v.grad.tolist() == [1.0, 4.0, 9.0]

# Three backwards through one graph: .grad adds them up, a capture has each of them.
inp = torch.eye(4, 5, requires_grad=True)
out = (inp + 1).pow(2).t()
once = 2 * torch.ones(4, 5) + 2 * torch.eye(4, 5)
with hs.capture(inp) as c:
    out.backward(torch.ones_like(out), retain_graph=True)
    print(f"First call\n{inp.grad}")
    assert torch.equal(inp.grad, once)
    out.backward(torch.ones_like(out), retain_graph=True)
    print(f"\nSecond call\n{inp.grad}")
    assert torch.equal(inp.grad, 2 * once)
    inp.grad.zero_()
    out.backward(torch.ones_like(out), retain_graph=True)
    print(f"\nCall after zeroing gradients\n{inp.grad}")
    assert torch.equal(inp.grad, once)
assert len(c.grads) == 3
assert all(torch.equal(gradient, once) for gradient in c.grads)

# Before a forward, after it, and in the backward: the four kinds of a module's tensors.
layer = nn.Linear(5, 3)
x = torch.randn(6, 5, requires_grad=True)
kinds = ("input", "output", "grad_input", "grad_output")
with hs.capture(layer, include="", kinds=kinds) as c:
    layer(x).sum().backward()
for kind in kinds:
    print(f"{kind} with {c['', kind][0].shape}")
assert [tuple(c["", kind][0].shape) for kind in kinds] == [(6, 5), (6, 3), (6, 5), (6, 3)]
assert torch.equal(c["", "grad_output"][0], torch.ones(6, 3))
assert torch.equal(c["", "grad_input"][0], x.grad)

# Gradients of parameters, clipped before they are added to .grad.
edits = [hs.edit(parameter, lambda g: g.clamp(-1, 1)) for parameter in layer.parameters()]
layer.zero_grad()
layer(x).sum().backward()
print("clipped:", layer.bias.grad)
assert layer.bias.grad.tolist() == [1.0, 1.0, 1.0]  # each was 6
assert [edit.calls for edit in edits] == [1, 1]
for edit in edits:
    edit.remove()

# What a layer takes and returns is edited likewise, and differentiated through.
expected = layer(2 * x).relu()
with hs.edit(layer, lambda t: 2 * t, "input"), hs.edit(layer, torch.relu):
    print("edited:", layer(x).shape)
    assert torch.equal(layer(x), expected)
assert not torch.equal(layer(x), expected)
