"""predicted(): of an H200, each figure that is to be reached, as far as instructions allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.cuda import tables
from bench.cuda.targets import EVERY_STEP, EVERY_TENTH, RATES

COUNTED = {tables.MOMENTS: "moments", tables.LOG: "and one histogram", tables.ALL: "and both"}
"""How the table of instructions calls what is asked."""
REGIMES = {
    "whole tensors, rows of 1024 and more": ("rows", "runs"),
    "(N, L, C), C = 64 to 16384": ("(N, L, C)", "columns"),
    "(N, L, C), C = 3 and 50257": ("(N, L, C)", "skewed columns"),
    "maps of 7x7, 14x14 and 16x16": ("(N, C, H, W)", "short rows"),
}
"""What is read, each as a case is called and with the kernel that reads it."""
READ_RATE = 4.3e12
"""Bytes a second of an H200, which torch.sum reads."""
PEAK = 989e12
"""Additions and multiplications a second of its matrix units, in bf16."""
UTILISATION = (1.0, 0.5)
"""Of PEAK, what a step reaches: no step can be shorter than by the first."""
WIDTH, TOKENS, LENGTH = 4096, 16384, 4096
"""Of the blocks that the benchmark trains; ten have 2 billion parameters."""


class Figure(NamedTuple):
    """One of what is to be reached."""

    claim: str
    bound: float
    value: float
    unit: str
    at_least: bool

    @property
    def reached(self) -> bool:
        """As the figure is shown, with two digits."""
        value = round(self.value, 2)
        return value >= self.bound if self.at_least else value <= self.bound


def step_of_block(share: float, utilisation: float) -> float:
    """Percent that a block's step takes longer, its Linears' outputs and their gradients observed
    in bf16 at this share of READ_RATE."""
    outputs = 3 + 1 + 4 + 1  # of qkv, out, up and down, in widths
    weights = (3 + 1 + 4 + 4) * WIDTH**2
    # Forward, and twice as much backward; causal attention leaves out half of its products.
    operations = 6 * TOKENS * (weights + LENGTH * WIDTH)
    observed = 2 * outputs * WIDTH * TOKENS * 2 / (share * READ_RATE)
    return 100 * observed / (operations / (utilisation * PEAK))


def predicted(shares: Mapping[tuple[str, str], float]) -> Iterator[Figure]:
    """shares: by kernel with its dtype and what is counted, of the bandwidth at most."""
    for rate in RATES:
        for regime, (case, kernel) in REGIMES.items():
            share = shares[f"{kernel} {rate.dtype}", COUNTED[rate.what]]
            claim = f"{regime}: {rate.what}, {rate.dtype}"
            yield Figure(claim, rate.allows(case), share, " of torch.sum", True)
    share = shares["columns bf16", COUNTED[tables.LOG]]
    for utilisation in UTILISATION:
        added = step_of_block(share, utilisation)
        where = f"at {utilisation:.0%} of the matrix units' peak"
        yield Figure(f"transformer, every step, {where}", EVERY_STEP, added, " %", False)
        yield Figure(f"transformer, every=10, {where}", EVERY_TENTH, added / 10, " %", False)


def table(shares: Mapping[tuple[str, str], float]) -> str:
    """As Markdown."""
    text = "| what | to be reached | predicted | |\n|---|---|---|---|\n"
    for figure in predicted(shares):
        sign, most = (">=", "at most") if figure.at_least else ("<=", "at least")
        verdict = "" if figure.reached else "**short**"
        text += f"| {figure.claim} | {sign} {figure.bound:g}{figure.unit} | "
        text += f"{most} {figure.value:.2f} | {verdict} |\n"
    return text
