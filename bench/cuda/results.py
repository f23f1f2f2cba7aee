"""Rows of measurements, and whether they reach what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.verdicts import Found, Target, Verdict, judge


@dataclass(frozen=True)
class Row:
    """One thing that was measured."""

    section: str
    case: str
    peer: str
    microseconds: float
    """The median of one call."""
    dtype: str = ""
    content: str = "normal"
    what: str = ""
    bytes: int = 0
    """What a call reads, at the least."""
    ratio: float | None = None
    """What is asked for, if anything: in most sections, torch.sum's time over this one."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def gigabytes_per_second(self) -> float | None:
        return self.bytes / self.microseconds * 1e-3 if self.bytes else None


def _ratios(about: Callable[[Row], bool]) -> Callable[[Sequence[Row]], Found]:
    """The ratios of the rows that a target is about."""

    def figures(rows: Sequence[Row]) -> Found:
        for row in rows:
            if row.ratio is not None and about(row):
                where = " ".join(filter(None, (row.case, row.dtype, row.content, row.what)))
                yield where, row.ratio

    return figures


def _reads(what: str, dtype: str) -> Callable[[Sequence[Row]], Found]:
    def about(row: Row) -> bool:
        is_ours = row.section == "reading" and row.peer == "update_"
        return is_ours and row.what == what and row.dtype == dtype

    return _ratios(about)


def _of(section: str, case: str | None = None) -> Callable[[Sequence[Row]], Found]:
    return _ratios(lambda row: row.section == section and case in (None, row.case))


_TARGETS = (
    *(
        Target(f"{what}, {dtype}: of torch.sum's rate", bound, _reads(what, dtype), at_least=True)
        for what, bounds in (
            ("moments", (0.92, 0.92)),
            ("+ 64 bins per channel", (0.80, 0.65)),
            ("+ log bins per tensor", (0.80, 0.65)),
        )
        for dtype, bound in zip(("float32", "bfloat16"), bounds, strict=True)
    ),
    Target("skewed data: of the rate on normal data", 0.80, _of("skewed"), at_least=True),
    Target("gradients: time over that of reading", 1.3, _of("gradients", "device")),
    Target("gradients: milliseconds of the host", 1.0, _of("gradients", "host")),
    Target("one observation: us of the host over a launch", 2.0, _of("host")),
    Target("transformer, every=1: % of the step", 4.0, _of("transformer", "every=1")),
    Target("transformer, every=10: % of the step", 0.5, _of("transformer", "every=10")),
)


def verdicts(rows: Iterable[Row]) -> list[Verdict]:
    """What the rows say of each target, by the row that is worst."""
    return list(judge(_TARGETS, list(rows)))


def as_json(machine: dict[str, Any], rows: Iterable[Row], notes: Iterable[str]) -> dict[str, Any]:
    """What the JSON file holds."""
    rows = list(rows)
    return {
        "machine": machine,
        "rows": [asdict(row) for row in rows],
        "targets": [asdict(v) | {"reached": v.reached} for v in verdicts(rows)],
        "notes": list(notes),
    }


def as_table(machine: dict[str, Any], rows: Iterable[Row], notes: Iterable[str]) -> str:
    """The same in Markdown."""
    rows = list(rows)
    lines = [" · ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| target | bound | worst | where | verdict |", "| --- | --- | --- | --- | --- |"]
    for v in verdicts(rows):
        worst = "-" if v.worst is None else f"{v.worst:.3g}"
        lines.append(f"| {v.target} | {v.sign} {v.bound:g} | {worst} | {v.where} | {v.says} |")
    for section in dict.fromkeys(row.section for row in rows):
        lines += ["", f"### {section}", ""]
        lines += ["| case | dtype | data | what | peer | us | GB/s | ratio |"]
        lines += ["| --- | --- | --- | --- | --- | ---: | ---: | ---: |"]
        for row in rows:
            if row.section == section:
                rate, ratio = row.gigabytes_per_second, row.ratio
                cells = [row.case, row.dtype, row.content, row.what, row.peer]
                cells += [f"{row.microseconds:.1f}"]
                cells += ["" if rate is None else f"{rate:.0f}"]
                cells += ["" if ratio is None else f"{ratio:.3g}"]
                lines.append(f"| {' | '.join(cells)} |")
    lines += [""] + [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"
