"""Prints a run's tables and targets, or writes them and the plots into documents:
`python -m bench.report build/bench.json --write docs/performance.md docs/performance-tables.md`.

In a document, what stands between a line `<!-- measured: TITLE -->` and the next `<!-- end -->`
is replaced by the tables whose titles begin with TITLE; `machine`, `targets` and `notes` are such
titles, too. The plots go into the folder `figures` beside the first document. With `--part`, the
tables of the run are written, each under its own machine, and all else stays as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from bench import targets, verdicts
from bench.cuda import targets as cuda
from bench.measured import Results
from bench.tables import NOTE, describe, lines

_MEASURED = re.compile(r"(<!-- measured: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def judged(results: Results) -> Iterator[str]:
    """A line per target of a run on a CPU, or on another device."""
    asked = cuda.TARGETS if "device" in results.machine else targets.TARGETS
    return verdicts.lines(verdicts.judge(asked, results))


def text(results: Results) -> str:
    """All of it."""
    tables = (describe(results.machine), NOTE, *lines(results), "", *judged(results))
    return "\n".join([*tables, "", *(f"- {note}" for note in results.notes)]).rstrip() + "\n"


def write(results: Results, path: Path) -> None:
    """The JSON file, and what it says in a text file beside it."""
    results.save(path)
    path.with_suffix(".txt").write_text(text(results))


def section(results: Results, title: str) -> Iterator[str]:
    """What stands under `title` in a document.

    Raises:
        ValueError: the run has no such table.
    """
    if title == "machine":
        yield describe(results.machine)
    elif title == "notes":
        yield NOTE
    elif title == "targets":
        yield from judged(results)
    elif some := results.of(title):
        yield from list(lines(Results(results.machine, some)))[1:]
    else:
        raise ValueError(f"no table begins with {title!r}: run all benchmarks, not a part")


def written(document: str, results: Results, *, part: bool = False) -> str:
    """`document` with all that is measured in it taken from `results`; or a `part`: their tables
    alone, each under the machine that it is from."""

    def replace(match: re.Match[str]) -> str:
        if part and not results.of(match[2]):
            return match[0]
        named = [describe(results.machine), ""] if part else []
        text = "\n".join([*named, *section(results, match[2])])
        return f"{match[1]}```\n{text}\n```\n{match[3]}"

    return _MEASURED.sub(replace, document)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", type=Path, nargs="+", metavar="DOCUMENT")
    parser.add_argument("--part", action="store_true")
    arguments = parser.parse_args()
    results = Results.load(arguments.results)
    if arguments.write is None:
        print(text(results), end="")
        return
    from bench import plots  # by matplotlib, which a check of a GPU does without

    pages = {p: written(p.read_text(), results, part=arguments.part) for p in arguments.write}
    figures = plots.draw(results, arguments.write[0].parent / "figures")
    for path, page in pages.items():
        path.write_text(page)
    print(*map(str, (*pages, *figures)), sep="\n")


if __name__ == "__main__":
    main()
