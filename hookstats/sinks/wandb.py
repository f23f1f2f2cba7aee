"""WandB: scalars and histograms of every tensor as charts of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.sinks.by_rank import ByRank, Ranks
from hookstats.sinks.charts import SCALARS, charts, check_scalars, logged
from hookstats.stats.arguments import check_integer

STEP = "hookstats/step"
"""The x axis of all other charts: the steps of hookstats, whatever else the run logs."""

SCALAR_STEP = "scalar/step"
"""The x axis of what training logs, which also has the steps that are not recorded."""

_MOST_BINS = 512  # wandb.Histogram.MAX_LENGTH


class WandB:
    """A sink that logs the charts of `charts.charts`, and what training logs, to a run of Weights &
    Biases.

    Args:
        run: the result of `wandb.init`, which the sink does not finish; None for the active run, or
            for a new one, which the sink finishes.
        scalars: which statistics of ChannelStats to log, of whole tensors.
        histograms: whether to log histograms, too.
        every: of the recorded steps, steps 0, every, 2 * every, ... are logged.
        commit: whether each step is logged at once, as a step of the W&B run. False adds the step
            to whatever the training logs next: for training that gives `wandb.log` its own steps.
        ranks: which of several ranks write. "all": each to a separate W&B run.
            A rank, such as 0: this one alone. "merged": rank 0 writes, and only records of the
            whole model, as `hookstats.Reduce` has them.
        **init: arguments for `wandb.init`, if there is no run.
    Raises:
        ImportError: wandb is not installed.
        ValueError: scalars, every or ranks is something else.
    """

    def __init__(
        self,
        run: Any = None,
        scalars: Sequence[str] = SCALARS,
        histograms: bool = True,
        every: int = 1,
        commit: bool = True,
        ranks: Ranks = "all",
        **init: Any,
    ) -> None:
        self._ranks = ByRank(ranks)
        self._scalars = check_scalars(scalars)
        self._every = check_integer("every", every, 1)
        self._most_bins = _MOST_BINS if histograms else 0
        self._commit = commit
        self._groups: set[str] = set()
        self._owned = False
        self._run: Any = run
        if not self._ranks.writes:
            return
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"sinks.WandB needs wandb ({error}): pip install wandb") from error
        self._histogram = wandb.Histogram
        run = wandb.run if run is None else run
        self._owned = run is None
        self._run = wandb.init(**init) if run is None else run
        for axis in (STEP, SCALAR_STEP):
            self._run.define_metric(axis, hidden=True)

    def __repr__(self) -> str:
        return f"WandB({getattr(self._run, 'name', None)!r})"

    def __call__(self, record: StepRecord) -> None:
        """Log a step."""
        if record.step % self._every or not self._ranks.takes(record):
            return
        numbers, histograms = charts(record, self._scalars, self._most_bins)
        found: dict[str, Any] = {STEP: record.step, **numbers}
        for tag, chart in histograms.items():
            found[tag] = self._histogram(np_histogram=(chart.counts, chart.edges))
        self._log(found)

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step, whatever `every` is."""
        if self._ranks.writes:
            self._log({SCALAR_STEP: step, **logged(values)}, SCALAR_STEP)

    def _log(self, values: dict[str, Any], axis: str = STEP) -> None:
        for group in {tag.partition("/")[0] for tag in values if tag != axis} - self._groups:
            self._run.define_metric(f"{group}/*", step_metric=axis)
            self._groups.add(group)
        self._run.log(values, commit=self._commit)

    def close(self) -> None:
        """Finish the run unless it is yours; closing again does nothing."""
        if self._owned:
            self._run.finish()
