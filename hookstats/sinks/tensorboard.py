"""TensorBoard: scalars and histograms of every tensor as event files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.sinks.by_rank import ByRank, Ranks
from hookstats.sinks.charts import charts, check_scalars, logged
from hookstats.stats.arguments import check_integer

_MOST_BINS = 260
"""Room for 16 octaves per sign of LogBins(3), unmerged. TensorBoard draws 30 bins, and its writer
is slow."""


class TensorBoard:
    """A sink that writes the charts of `charts.charts`, and what training logs, to TensorBoard.

    Args:
        logdir: the directory of the event files; or a SummaryWriter of your own, which the sink
            does not close.
        scalars: which statistics of ChannelStats to write, of whole tensors. More than one, and
            histograms, soon make thousands of charts, which TensorBoard is slow to show.
        histograms: whether to write histograms, too.
        every: of the recorded steps, steps 0, every, 2 * every, ... are written.
        ranks: which of several ranks write. "all": each in separate curves, rank 1 in the
            directory `rank1` in `logdir`; a writer of your own each rank has itself.
            A rank, such as 0: this one alone. "merged": rank 0 writes, and only records of the
            whole model, as `hookstats.Reduce` has them.
    Raises:
        ImportError: tensorboard is not installed.
        ValueError: scalars, every or ranks is something else.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | Any,
        scalars: Sequence[str] = ("rms",),
        histograms: bool = False,
        every: int = 1,
        ranks: Ranks = "all",
    ) -> None:
        self._ranks = ByRank(ranks)
        self._scalars = check_scalars(scalars)
        self._every = check_integer("every", every, 1)
        self._most_bins = _MOST_BINS if histograms else 0
        self._owned = isinstance(logdir, (str, os.PathLike))
        self._writer: Any = logdir
        self._logdir = str(getattr(logdir, "log_dir", logdir))
        if self._owned:
            self._logdir = str(self._ranks.of_directory(Path(logdir)))
        if not self._ranks.writes:
            self._writer = None
        elif self._owned:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    f"sinks.TensorBoard needs tensorboard ({error}): pip install tensorboard"
                ) from error
            self._writer = SummaryWriter(self._logdir)

    def __repr__(self) -> str:
        return f"TensorBoard({self._logdir!r})"

    def __call__(self, record: StepRecord) -> None:
        """Write a step."""
        if record.step % self._every or not self._ranks.takes(record):
            return
        numbers, histograms = charts(record, self._scalars, self._most_bins)
        for tag, number in numbers.items():
            self._writer.add_scalar(tag, number, record.step)
        for tag, chart in histograms.items():
            self._writer.add_histogram_raw(
                tag,
                min=chart.min,
                max=chart.max,
                num=chart.num,
                sum=chart.sum,
                sum_squares=chart.sum_squares,
                # An empty bucket first, as the left edge of the next one.
                bucket_limits=chart.edges.tolist(),
                bucket_counts=[0, *chart.counts.tolist()],
                global_step=record.step,
            )

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step, whatever `every` is."""
        for tag, number in logged(values).items() if self._ranks.writes else ():
            self._writer.add_scalar(tag, number, step)

    def close(self) -> None:
        """Flush, and close the writer unless it is yours; closing again does nothing."""
        if self._writer is None:
            return
        if self._owned:
            self._writer.close()
        else:
            self._writer.flush()
