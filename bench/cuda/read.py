"""python -m bench.cuda.read [FILE...]: what gpu-check measured, into docs/cuda.md, with verdicts.

FILE: what `make gpu-check` wrote; by default every result of a GPU that bench/results keeps. Each
has a section of its own: what is reached and what is short, and by how much; how the phases went;
all tables. Without a result the page says that nothing was measured, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.cuda.page import MEASURED, PAGE, WHERE, filled
from bench.cuda.tables import SMOKE
from bench.measured import Results
from bench.report import judged
from bench.tables import NOTE, describe, lines

KEPT = Path(__file__).resolve().parents[1] / "results"
NOTHING = "**Nothing on this page has been measured or run on a GPU yet.**\n"


def kept(folder: Path) -> list[Path]:
    """The results of GPUs in it, beside which there may be those of CPUs."""
    return [path for path in sorted(folder.glob("*.json")) if _device(Results.load(path))]


def _device(results: Results) -> str:
    """Empty where it is no GPU's, or nothing was measured."""
    is_gpu = "multiprocessors" in results.machine and SMOKE not in results.notes
    return results.machine["device"] if is_gpu else ""


def load(files: Iterable[Path]) -> list[Results]:
    """What is in these files.

    Raises:
        ValueError: one of them is no measurement of a GPU.
    """
    found = []
    for path in files:
        results = Results.load(path)
        if not _device(results):
            raise ValueError(f"{path}: expected what gpu-check measured on a GPU")
        found.append(results)
    return found


def where(found: Sequence[Results]) -> str:
    """What the page says at its top."""
    names = [f"{_device(each)} (torch {each.machine['torch']})" for each in found]
    return f"Measured on {', '.join(names)}: see [below](#measured).\n" if names else NOTHING


def measured(found: Sequence[Results]) -> str:
    """The section of the page, as Markdown."""
    if not found:
        return "Nothing yet: `bench/results` has no result of a GPU.\n"
    return "\n".join(_section(each) for each in found)


def _section(results: Results) -> str:
    notes = "".join(f"- {note}\n" for note in results.notes)
    blocks = (judged(results), (NOTE, *lines(results)))
    verdicts, tables = ("```\n" + "\n".join(block) + "\n```\n" for block in blocks)
    return f"### {describe(results.machine)}\n\n{verdicts}\n{notes}\n{tables}"


def page(text: str, found: Sequence[Results]) -> str:
    """The page `text` with what was found."""
    return filled(filled(text, WHERE, where(found)), MEASURED, measured(found))


def main(given: Sequence[str] | None = None) -> int:
    """Write the page, and print the verdicts."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cuda.read",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args(given).files
    if missing := [str(path) for path in files if not path.is_file()]:
        raise SystemExit(f"bench.cuda.read: {', '.join(missing)}: no such file")
    try:
        found = load(files or kept(KEPT))
    except ValueError as error:
        raise SystemExit(f"bench.cuda.read: {error}") from None
    PAGE.write_text(page(PAGE.read_text(), found))
    for results in found:
        print(describe(results.machine), *judged(results), sep="\n")
    if not found:
        print(
            "bench.cuda.read: bench/results has no result of a GPU: run `make gpu-check` where "
            "there is one, and keep its gpu-check.json and .txt there",
            file=sys.stderr,
        )
    return int(not found)


if __name__ == "__main__":
    raise SystemExit(main())
