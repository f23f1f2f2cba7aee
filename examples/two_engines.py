"""Where a trainer and a rollout engine part, beyond what batches of other sizes explain.

A site's distance is how much its rms differs, and its mean and mean magnitude in units of it.
"""

import copy

import torch
from torch import nn

import hookstats as hs

torch.manual_seed(0)
samples = torch.randn(64, 16).bfloat16()


def engine(model, out, size):
    """The same samples in one step, in batches of this size."""
    with torch.no_grad(), hs.watch(model, kinds=("output",), out=out) as watch:
        for batch in samples.split(size):
            hs.observe("logprobs", model(batch).float().log_softmax(-1))
        watch.step()


layers = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 8)
trainer = nn.Sequential(*layers).bfloat16()
rollout = copy.deepcopy(trainer)
rollout[3] = nn.GELU()  # the fault
engine(trainer, "runs/trainer", 64)
engine(trainer, "runs/floor", 1)
engine(rollout, "runs/rollout", 1)
floor, apart = (
    {site.name: site.distance for site in hs.compare("runs/trainer", other).sites}
    for other in ("runs/floor", "runs/rollout")
)
order = [name for name, kind in hs.open_run("runs/trainer")[0]]
found = [name for name in order if apart.get(name, 0) > 10 * floor.get(name, 0)]
print(found)
assert found == ["3", "4", "logprobs"]
