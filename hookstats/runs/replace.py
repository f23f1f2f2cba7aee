"""remove_run(): deletes what a rank, or nobody any more, wrote into a run directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hookstats.runs.format import (
    PARTS,
    RUN_JSON,
    SCALARS,
    THINNING_JSON,
    alerts_jsonl,
    list_parts,
    listed_ranks,
    rank_json,
)
from hookstats.runs.headers import read_rank_json
from hookstats.runs.thinning import remove_ranges


def remove_run(run: Path, rank: int, ranks: int, started: str | None) -> None:
    """Delete the files of `rank`, which has its lock, and those of ranks that there are no more.

    Nothing but files of the format is deleted. Another rank's files stay: it replaces them itself.
    The first rank of the new run deletes what the ranks share.

    Args:
        ranks: how many ranks there are now; their locks are not looked at.
        started: what tells their process group from others; see `footer.Session`.
    """
    names = [path.name for path in run.iterdir()]
    parts = {folder: list_parts(run, folder) for folder in (PARTS, SCALARS) if folder in names}
    gone = {one for one in listed_ranks(names) if one >= ranks}
    gone |= {part.rank for found in parts.values() for part in found if part.rank >= ranks}
    for one in (rank, *sorted(gone)):
        for folder, found in parts.items():
            for part in found:
                if part.rank == one:
                    (run / folder / str(part)).unlink(missing_ok=True)
        for name in (alerts_jsonl(one), rank_json(one)):
            (run / name).unlink(missing_ok=True)
    others = listed_ranks([path.name for path in run.iterdir()])
    if not any(_is_of_group(run, other, started) for other in others):
        remove_ranges(run)
        for name in (THINNING_JSON, RUN_JSON):
            (run / name).unlink(missing_ok=True)


def _is_of_group(run: Path, rank: int, started: str | None) -> bool:
    """Whether a rank has begun the new run; without a process group nobody can tell."""
    with suppress(OSError, ValueError):
        world = read_rank_json(run, rank).get("world") or {}
        return started is None or world.get("started") == started
    return False
