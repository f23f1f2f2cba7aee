"""The tables of what is measured on a GPU."""

from __future__ import annotations

from bench.measured import Table

MOMENTS, LOG, ALL = "moments", "+ log bins per tensor", "+ 64 bins per channel"
WHATS = (MOMENTS, LOG, ALL)
"""What is asked of one call, each with what stands before it."""

CONTENTS = ("normal", "constant", "99% zero", "heavy-tailed", "1% NaN")
"""What is in a tensor."""

SUM = "torch.sum"
LAUNCH = "torch.cuda._sleep"
RATE = ("us/GB", 1e6)
"""A million over it is GB/s."""

READING = Table("reading", *RATE, floor=SUM, ours=WHATS)
SIZES = Table("sizes", *RATE, floor=SUM, ours=WHATS)
SKEWED = {
    what: Table(f"skewed data: {what}", *RATE, floor=CONTENTS[0], ours=CONTENTS[1:])
    for what in WHATS
}
BESIDE = Table(
    "beside others: moments",
    *RATE,
    floor=SUM,
    ours=(MOMENTS,),
    variants=(LOG, ALL),
    varied="with histograms",
    parts={
        "torch.batch_norm_stats": "mean and variance of each channel",
        "torch.histc": "64 bins of the tensor",
        "cupy.histogram": "64 bins of the tensor",
    },
)
BESIDE_ALL = Table(f"beside others: moments {LOG} {ALL}", *RATE, floor=SUM, ours=(ALL,))
GRADIENTS = Table(
    "gradients, by one call",
    *RATE,
    floor=SUM,
    ours=("update_many_",),
    parts={"torch._foreach_norm": "the norm of each"},
)
HOOK = Table("gradients, the host's time", "ms/step", 1e3, floor="update_many_", ours=("watch",))
HOST = Table(
    "host: one observation",
    "us/call",
    1e6,
    floor="not watched",
    ours=("watch",),
    parts={LAUNCH: "one launch", "update_": "one call of the operator"},
    by_peer=True,
)
TRANSFORMER = Table(
    "transformer: training steps of two blocks, the outputs of every Linear and their gradients",
    "ms/step",
    1e3,
    floor="not watched",
    ours=("every=1", "every=10"),
    parts={"TransformerEngine": "five statistics of each tensor, no channels, no histogram"},
    by_peer=True,
)

SMOKE = "a smoke run: tiny tensors, and no figure here is a measurement"
"""The note of a run that went through all of this and measured nothing."""
