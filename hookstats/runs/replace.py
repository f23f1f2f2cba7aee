"""remove_run(): deletes what a rank, or nobody any more, wrote into a run directory."""

from __future__ import annotations

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


def remove_run(run: Path, rank: int, ranks: int) -> None:
    """Delete the files of `rank`, which has its lock, and those of ranks that there are no more.

    Nothing but files of the format is deleted. Another rank's files stay: it replaces them itself.

    ranks: how many ranks there are now; their locks are not looked at.
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
    if ranks == 1:
        for name in (THINNING_JSON, RUN_JSON):
            (run / name).unlink(missing_ok=True)
