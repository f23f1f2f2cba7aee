"""The tables of what is measured on a GPU."""

from __future__ import annotations

from bench.measure import Table

MOMENTS, LOG, ALL = "moments", "+ log bins per tensor", "+ 64 bins per channel"
WHATS = (MOMENTS, LOG, ALL)
"""What is asked of one call, each with what stands before it."""

CONTENTS = ("normal", "constant", "99% zero", "heavy-tailed", "1% NaN")
"""What is in a tensor."""

SUM = "torch.sum"
LAUNCH = "torch.cuda._sleep"
RATE = ("us/GB", 1e6)
"""A million over it is GB/s."""

READING = Table("reading", *RATE, floor=SUM)
SIZES = Table("sizes", *RATE, floor=SUM)
SKEWED = {what: Table(f"skewed data: {what}", *RATE, floor=CONTENTS[0]) for what in WHATS}
BESIDE = Table(
    "beside others: moments",
    *RATE,
    floor=SUM,
    parts={
        "torch.batch_norm_stats": "mean and variance of each channel",
        "torch.histc": "64 bins of the tensor",
    },
)
BESIDE_ALL = Table(f"beside others: moments {LOG} {ALL}", *RATE, floor=SUM)
GRADIENTS = Table(
    "gradients, by one call",
    *RATE,
    floor=SUM,
    parts={"torch._foreach_norm": "the norm of each"},
)
HOOK = Table("gradients, the host's time", "ms/step", 1e3, floor="update_many_")
HOST = Table(
    "host: one observation",
    "us/call",
    1e6,
    floor="not watched",
    parts={LAUNCH: "one launch", "update_": "one call of the operator"},
)
TRAINING = Table(
    "training",
    "ms/step",
    1e3,
    floor="not watched",
    parts={
        "wandb, log_freq=1000": "64 bins of each parameter's gradient, seldom",
        "wandb, log_freq=1": "64 bins of each parameter's gradient",
        "torchinstruments": "statistics and 64 bins of every output and its gradient, per tensor",
    },
)
