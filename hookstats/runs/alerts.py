"""The alerts of a run: a file of JSON lines per rank, appended to as rules find something."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.records.alerts import Alert
from hookstats.runs.files import RunDirectory, naming
from hookstats.runs.format import alerts_jsonl


class AlertEntry(NamedTuple):
    """An alert as a run keeps it."""

    alert: Alert
    incident: int
    """A number that all alerts of one cause share."""
    cause: bool
    """Whether the alert is the cause."""
    thresholds: Mapping[str, Any] | None
    """Those of the rule, by name; None where they are not known."""

    def to_dict(self, rank: int) -> dict[str, Any]:
        """The JSON object of docs/format.md, in the file of a rank."""
        alert = self.alert
        return {
            "step": alert.step,
            "rule": alert.rule,
            "severity": alert.severity,
            "message": alert.message,
            "site": alert.site,
            "kind": alert.kind,
            **({} if alert.channel is None else {"channels": [alert.channel]}),
            **({"value": alert.value} if math.isfinite(alert.value) else {}),
            **({} if alert.since == alert.step else {"since": alert.since}),
            **({"advice": alert.advice} if alert.advice else {}),
            **({} if alert.rank == rank else {"rank": alert.rank}),
            "incident": self.incident,
            "cause": self.cause,
            **({} if self.thresholds is None else {"thresholds": dict(self.thresholds)}),
        }


class AlertFile:
    """Appends the alerts of one rank; what could not be written is written with the next ones."""

    def __init__(self, run: RunDirectory, rank: int) -> None:
        self._run = run
        self._path = run.path / alerts_jsonl(rank)
        self._rank = rank
        self._pending: list[str] = []
        self._last: int | None = None
        """The step that was recorded last; with alerts before any, the one before the first."""
        self._begun = False

    def at(self, step: int) -> None:
        """Note that a step is recorded: what an earlier session, or this one, said of it and of
        later steps is void where training went back.

        Raises:
            OSError: the file cannot be written.
        """
        if self._last is None:
            went_back = self._path.exists()
        else:
            went_back = step <= self._last and (self._begun or self._path.exists())
        self._last = step
        if went_back:
            self._add([{"rewind": step}])

    def write(self, entries: Sequence[AlertEntry]) -> None:
        """Append alerts; the first may come before any step is recorded, such as those about the
        graph of the loss.

        Raises:
            OSError: the file cannot be written.
        """
        if entries and self._last is None:
            first = min(one.alert.step for one in entries)
            self.at(first)
            self._last = first - 1
        self._add([one.to_dict(self._rank) for one in entries])

    def _add(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._pending += [json.dumps(entry, default=repr) for entry in entries]
        self.flush()

    def flush(self) -> None:
        """Put what is pending on the disk."""
        if not self._pending:
            return
        self._run.check()
        if not self._begun:
            self._cut()
        with self._path.open("ab") as file:
            before = file.tell()
            try:
                file.write("".join(f"{line}\n" for line in self._pending).encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise
        self._pending = []
        self._begun = True

    def _cut(self) -> None:
        """Cut off a line that a killed writer has not finished."""
        with suppress(FileNotFoundError):
            content = self._path.read_bytes()
            if content and not content.endswith(b"\n"):
                os.truncate(self._path, content.rfind(b"\n") + 1)


def read_alerts(run: Path, rank: int) -> list[Alert]:
    """The alerts in the file of one rank, in the order in which they were found; [] without a file.

    Raises:
        ValueError: the file is damaged; the message names it.
    """
    with naming(run / alerts_jsonl(rank)):
        return [_alert(entry, rank) for entry in read_alert_lines(run, rank)]


def read_alert_lines(run: Path, rank: int) -> list[dict[str, Any]]:
    """The JSON objects of these alerts; errors are those of `read_alerts`."""
    path = run / alerts_jsonl(rank)
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = []
    with naming(path):
        *lines, _ = path.read_bytes().split(b"\n")  # after the last line feed: not yet written
        for entry in map(json.loads, lines):
            if "rewind" in entry:
                entries = [each for each in entries if each["step"] < entry["rewind"]]
            else:
                entries.append(entry)
    return entries


def _alert(entry: Mapping[str, Any], rank: int) -> Alert:
    return Alert(
        step=entry["step"],
        rank=entry.get("rank", rank),
        site=entry.get("site", ""),
        kind=entry.get("kind", ""),
        channel=entry.get("channels", [None])[0],
        rule=entry["rule"],
        value=entry.get("value", float("nan")),
        message=entry["message"],
        severity=entry["severity"],
        since=entry.get("since", -1),
        advice=entry.get("advice", ""),
    )
