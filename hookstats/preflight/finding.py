"""Finding: what a preflight says is wrong; Line: a check, its result and its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hookstats.records.alerts import SEVERITIES, Severity


@dataclass(frozen=True)
class Finding:
    """What `check` found wrong.

    `check` is the name of the check, `where` the module or the parameter, "" for the whole model.
    `message` says what is wrong in one sentence, `advice` what usually helps. A note is no harm
    yet, a warning costs training something, an error most of it.
    """

    check: str
    severity: Severity
    where: str
    message: str
    advice: str

    @property
    def level(self) -> int:
        """How bad it is: 0 for a note, 1 for a warning, 2 for an error."""
        return SEVERITIES.index(self.severity)

    def __str__(self) -> str:
        return self.message


class Line(NamedTuple):
    """The result of a check: what was measured, or why nothing was, and what is wrong."""

    check: str
    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def status(self) -> str:
        """ "ok", "-" where nothing was checked, or the severity of the worst finding."""
        if not self.findings:
            return "-" if self.text.startswith(NOT) else "ok"
        return max(self.findings, key=lambda one: one.level).severity


NOT = "not checked"
"""What the text of a check begins with that had nothing to go by."""


def skipped(check: str, why: str) -> Line:
    return Line(check, f"{NOT}: {why}")


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
