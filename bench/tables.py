"""python -m bench.tables FILE [KEPT]: prints what was measured, and writes a short copy.

FILE is pytest-benchmark's JSON (`make bench`), or what `make gpu-check` writes in the same form.
KEPT is written with a line for each case, to be stored in bench/results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

NOTE = "~ disturbed: the median is over 1.5 times the least      * computes only a part"

Entry = dict[str, Any]
"""A peer's times, of pytest-benchmark's "benchmarks"; `group` and `extra_info` are read."""


def cases(entries: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """The entries of each case, with what the case is called."""
    for group, found in groupby(entries, lambda entry: str(entry["group"])):
        yield group, list(found)


def lines(machine: Mapping[str, Any], entries: Iterable[Entry]) -> Iterator[str]:
    """A table for each case, a line for each peer."""
    yield ", ".join(f"{name} {value}" for name, value in machine.items())
    yield NOTE
    for group, found in cases(entries):
        columns = dict.fromkeys(name for entry in found for name, _ in _figures(entry))
        rows = [[group, *columns]]
        for entry in found:
            figures = dict(_figures(entry))
            rows.append([_name(entry), *(figures.get(name, "-") for name in columns)])
        yield from ("", *aligned(rows))


def _name(entry: Entry) -> str:
    info = entry["extra_info"]
    marks = "*" * ("part" in info) + "~" * info.get("disturbed", False)
    return f"  {info.get('peer', entry['name'])}{marks}"


def _figures(entry: Entry) -> Iterator[tuple[str, str]]:
    for name, value in entry["extra_info"].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        pairs = zip(cells, widths[1:], strict=True)
        yield "  ".join([name.ljust(widths[0])] + [v.rjust(width) for v, width in pairs]).rstrip()


def save(path: Path, head: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    """Write JSON, a case a line, of all numbers four digits."""
    short = json.loads(
        json.dumps(list(entries)), parse_float=lambda text: float(f"{float(text):.4g}")
    )
    rows = [",".join(json.dumps(entry) for entry in found) for _, found in cases(short)]
    text = json.dumps(dict(head), indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + ',\n "benchmarks": [\n' + ",\n".join(rows) + "\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("kept", type=Path, nargs="?")
    options = parser.parse_args()
    found = json.loads(options.file.read_text())
    entries = found.pop("benchmarks")
    machine = found["machine_info"].get("measured_on", found["machine_info"])
    print("\n".join(lines(machine, entries)))
    if options.kept is not None:
        save(options.kept, found, entries)


if __name__ == "__main__":
    main()
