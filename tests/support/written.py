"""write_run(): a run directory of given records."""

from __future__ import annotations

from pathlib import Path

from hookstats.records.record import StepRecord
from hookstats.runs.writer import RunWriter


def write_run(out: Path, *records: StepRecord, rank: int = 0) -> list[Path]:
    """Write each record as a part; the parts."""
    bins, channel_bins = records[0].bins, records[0].channel_bins
    header = {"bins": bins, "channel_bins": channel_bins}
    writer = RunWriter(out, header, rank=rank, seconds_per_part=0)
    for record in records:
        writer.write(record)
    writer.close()
    return sorted((out / "parts").glob(f"{rank:05d}-*"))
