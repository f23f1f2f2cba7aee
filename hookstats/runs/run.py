"""open_run and Run: reading a run directory, even while a training run writes it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from hookstats.records.alerts import Alert, Incidents, incidents_of, of_ranks
from hookstats.records.display import view_of
from hookstats.records.keys import Key, did_you_mean
from hookstats.records.record import StepRecord
from hookstats.runs.alerts import read_alerts
from hookstats.runs.batches import read_batch
from hookstats.runs.format import (
    CHANNELS,
    RUN_JSON,
    TENSORS,
    merged_schema,
    require_pyarrow,
    schema_of,
)
from hookstats.runs.headers import (
    bins_of,
    headed_ranks,
    read_rank_json,
    read_run_json,
    unite_coverage,
    unite_headers,
)
from hookstats.runs.index import Where
from hookstats.runs.merged import MergedRecords
from hookstats.runs.part_file import Footer, check_grad_scale
from hookstats.runs.parts import Cache, Parts
from hookstats.runs.remote import Copy, is_url
from hookstats.runs.scalars import RankScalars, Scalars, ScalarsByName
from hookstats.runs.series import Series, span
from hookstats.stats.arguments import check_path
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from hookstats.show.plot import Plots


def open_run(
    path: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    grad_scale: float | Literal["header"] | None = None,
) -> Run:
    """The run that `hookstats.watch(..., out=path)` wrote or is writing.

    Args:
        path: the directory, or a URL that fsspec takes, such as "s3://bucket/runs/a": its files are
            downloaded below ~/.cache/hookstats, or HOOKSTATS_CACHE, only the files that changed.
        skip_damaged: leave out parts that are damaged, with one RuntimeWarning each; by default
            a call that needs a damaged part raises a ValueError that names the part.
        grad_scale: a factor for the gradients of modules' tensors, to compare several runs. None:
            gradients are as each rank saw them, of the loss of the rank's samples. "header": the
            factor that each rank noted (1 where none is known) turns them into gradients of the
            mean loss of all ranks. A number: this factor, for example 1 / n where the losses of n
            micro-batches are not divided by n. Histograms are moved by whole bins.

    Raises:
        FileNotFoundError: nothing is at `path`; the message names runs with a similar name.
        OSError: the URL cannot be reached.
        ValueError: `path` is no path or no run directory, run.json is damaged, or a
            hookstats of another format wrote it; `grad_scale` is something else.
        ImportError: pyarrow is not installed, or what the URL needs.
    """
    return Run(path, skip_damaged=skip_damaged, grad_scale=grad_scale)


class Run:
    """A run directory. Every call sees the parts that are finished at that time.

    ``run[step]`` is a StepRecord; ``run["layer1.*", "output"]`` is a Series, some sites over all
    steps. Both are of the whole model: the records of several ranks are merged.
    ``run.of_rank(r)`` is the same run as one rank recorded it.
    A run is one line of steps: if training went back to a checkpoint, the earlier records of that
    step and of later ones are void, and left out of everything.
    A damaged part raises a ValueError that names the file (see `open_run`); steps in other parts
    can still be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        skip_damaged: bool = False,
        rank: int | None = None,
        grad_scale: float | Literal["header"] | None = None,
        cache: Cache | None = None,
    ) -> None:
        """cache: what was read of the run before."""
        require_pyarrow()
        self._grad_scale = grad_scale if grad_scale == "header" else check_grad_scale(grad_scale)
        self.rank = rank
        """The rank whose records these are; None: those of all ranks, as one model."""
        copy = Copy(path) if is_url(path) else None
        self.path = check_path("path", path) if copy is None else copy.path
        """The run directory; of a run at a URL the local copy."""
        self.url = path if is_url(path) else None
        """The URL that the run was opened by, if any."""
        if not self.path.exists():
            alike = did_you_mean(str(self.path), _runs_beside(self.path))
            raise FileNotFoundError(f"path = {str(path)!r}: no such run{alike}")
        if not (self.path / RUN_JSON).is_file():
            runs = sorted(_runs_beside(self.path / RUN_JSON))
            among = f"; runs in it: {', '.join(map(repr, runs[:8]))}" if runs else ""
            raise ValueError(
                f"path = {str(path)!r}: expected a run directory, with {RUN_JSON}{among}"
            )
        read_run_json(self.path)
        # The process may change its directory.
        self._directory = self.path.absolute()
        self._skip_damaged = skip_damaged
        headed = self._headed
        contents = [read_rank_json(self._directory, one) for one in headed]
        content = contents[0]
        self.header: dict[str, Any] = unite_headers([each["header"] for each in contents])
        """The settings and the model; modules and parameters are those of all ranks."""
        self.created: str | None = content.get("created")
        """When the run was begun, or last continued: ISO 8601, UTC."""
        self.version: str | None = content.get("hookstats")
        """The hookstats that wrote the run."""
        self.bins = bins_of(self.header, "bins")
        """The bins of every tensor's histogram; None where there were none."""
        self.channel_bins = bins_of(self.header, "channel_bins")
        """The bins of every channel's histogram; None where there were none."""
        self._parts = Parts(
            self._directory,
            self.bins,
            self.channel_bins,
            skip_damaged=skip_damaged,
            rank=rank,
            scale=None if self._grad_scale is None else self._scale_of,
            cache=Cache(copy) if cache is None else cache,
        )
        self._records = MergedRecords(self._parts, self._where)
        self._scalars: dict[int, Scalars] = {}
        self.scalars: ScalarsByName = self._scalars_of(headed)[0]
        """The numbers that were logged: ``run.scalars["loss"].values``; also of steps that are not
        recorded. Those of several ranks are merged as `RankScalars` says."""
        if rank is None and len(headed) > 1:
            self.scalars = RankScalars(lambda: self._scalars_of(self._headed), self._merged)

    @property
    def _headed(self) -> list[int]:
        """The ranks whose files these are, ascending."""
        return headed_ranks(self._directory) if self.rank is None else [self.rank]

    def _scalars_of(self, ranks: list[int]) -> list[Scalars]:
        for rank in ranks:
            if rank not in self._scalars:
                self._scalars[rank] = Scalars(
                    self._directory, rank, skip_damaged=self._skip_damaged
                )
        return [self._scalars[rank] for rank in ranks]

    def _merged(self, step: int) -> StepRecord | None:
        """What all ranks recorded in a step; None where none did."""
        self._parts.refresh()
        return self._records.record(step, channels=False) if self._records.ranks(step) else None

    def of_rank(self, rank: int) -> Run:
        """What one rank recorded, as the rank recorded it: the same run, read by itself.

        Raises:
            FileNotFoundError: the rank has written no header.
            ValueError: its header is damaged.
        """
        options: Any = {"skip_damaged": self._skip_damaged, "grad_scale": self._grad_scale}
        run = Run(self._directory, rank=rank, cache=self._parts.cache, **options)
        run.path = self.path
        return run

    def _scale_of(self, rank: int, footer: Footer) -> float:
        """By what the gradients of a part are multiplied."""
        if isinstance(self._grad_scale, float):
            return self._grad_scale
        if footer.grad_scale is not None:
            return footer.grad_scale
        header = read_rank_json(self._directory, rank)["header"]
        return check_grad_scale(header.get("grad_scale")) or 1.0

    def __repr__(self) -> str:
        try:
            return f"Run({str(self.path)!r}, {self._holds()})"
        except (OSError, ValueError, KeyError) as error:
            return f"Run({str(self.path)!r}, unreadable: {error})"

    def _holds(self) -> str:
        """What the run holds, in words."""
        self._parts.refresh()
        if not self._parts.index:
            return "no steps yet"
        steps, ranks = self.steps, list(self._parts.index)
        sites = len(self.tensors(steps[-1]))
        of = "" if ranks == [0] else f", ranks {', '.join(map(str, ranks))}"
        return f"{span(steps)}, {sites} site{'s' * (sites != 1)}{of}"

    def _ipython_key_completions_(self) -> list[int | Key]:
        """What notebooks offer after ``run[``: steps, and the sites of the last of them."""
        steps = self.steps
        return [*steps, *(self[steps[-1]] if steps else ())]

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @property
    def closed(self) -> str | None:
        """When the last rank closed the run: ISO 8601, UTC; None if any is still running or was
        killed."""
        found = [read_rank_json(self._directory, rank).get("closed") for rank in self._headed]
        ended = [one for one in found if one is not None]
        return max(ended) if len(ended) == len(found) else None

    @property
    def coverage(self) -> dict[str, Any] | None:
        """The coverage report that ended the run; None if it is still running or was killed.

        Of several ranks, the counts of each site are added up.
        """
        found = [read_rank_json(self._directory, rank)["coverage"] for rank in self._headed]
        return unite_coverage(found)

    @property
    def damaged(self) -> dict[str, str]:
        """The damaged parts that were left out so far, and what is wrong with each."""
        return dict(self._parts.damaged)

    @property
    def alerts(self) -> list[Alert]:
        """What the rules said while the run was recorded, by step; of all ranks.

        Raises:
            ValueError: a file of alerts is damaged; the message names it.
        """
        found = [self._alerts_of(rank) for rank in self._headed]
        return found[0] if len(found) == 1 else of_ranks(found)

    def _alerts_of(self, rank: int) -> list[Alert]:
        try:
            return read_alerts(self._directory, rank)
        except ValueError as error:
            if not self._skip_damaged:
                raise
            warnings.warn(f"hookstats: left out: {error}", RuntimeWarning, stacklevel=3)
            return []

    @property
    def incidents(self) -> Incidents:
        """The alerts by their causes: what several ranks found of one cause is one incident.

        Each has its `batch`, where `Watch.keep_batches` kept that.

        Raises:
            ValueError: as of `alerts`.
        """
        read = partial(read_batch, self._directory, self._headed)
        found = incidents_of(self.alerts)
        return Incidents([replace(one, read=partial(read, one.cause)) for one in found])

    @property
    def plot(self) -> Plots:
        """Figures of the run; they need matplotlib."""
        plots: Plots = view_of(self, "plots")
        return plots

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        steps: tuple[int | None, int | None] | None = None,
        other: Run | None = None,
        ranks: bool = False,
    ) -> Path:
        """Write the run as one HTML file that opens in any browser, offline; return its path.

        Args:
            path: the file to write or replace; by default beside the run: runs/a.html of runs/a,
                or runs/a-b.html where b is beside it.
            steps: the first and the last step to show; None for those of the run.
            other: a run to set beside this one: its statistics, and the ratios.
            ranks: set each rank beside all of them merged, in the same way.
        Raises:
            ValueError: the run has no steps, or none of these; or both `other` and `ranks`.
            OSError: the file cannot be written.
        """
        written: Path = view_of(self, "report")(path, steps=steps, other=other, ranks=ranks)
        return written

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded, by any rank, ascending."""
        self._parts.refresh()
        return self._records.steps()

    def ranks_of(self, step: int) -> list[int]:
        """The ranks that recorded a step; fewer than `ranks` while a run is written, or where ranks
        record different steps."""
        self._parts.refresh()
        return self._records.ranks(step)

    @property
    def steps_with_channels(self) -> list[int]:
        """The steps whose channels were kept, by all ranks that recorded them, ascending."""
        self._parts.refresh()
        channels = self._parts.channels
        there = set().union(*(channels.get(rank, {}) for rank in self._parts.index))
        return sorted(
            step
            for step in there
            if all(step in channels.get(rank, {}) for rank in self._records.ranks(step))
        )

    @property
    def thinned(self) -> int:
        """The number of recorded steps that were deleted to keep to `max_bytes`, of the rank that
        deleted most."""
        self._parts.refresh()
        return max(map(self._parts.thinned, self._parts.index), default=0)

    @property
    def gaps(self) -> dict[int, str]:
        """The steps that any rank should have recorded and lost, ascending, each with the reason.

        The reason is "disk" if the disk took no part for long, "stall" if the training would have
        had to wait, "error" if something failed, "interrupted" if Ctrl-C interrupted hookstats.
        Steps that a kill loses are not among them.
        """
        self._parts.refresh()
        found = {k: v for rank in self._parts.index for k, v in self._parts.gaps(rank).items()}
        return dict(sorted(found.items()))

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded anything, ascending."""
        self._parts.refresh()
        return list(self._parts.index)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __contains__(self, step: object) -> bool:
        return step in self.steps

    def tensors(self, step: int) -> StepRecord:
        """What was recorded in a step, without channels and scalars.

        Raises:
            KeyError: there is no such step.
        """
        self._parts.refresh()
        return self._records.record(step, channels=False)

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: Key) -> Series: ...
    def __getitem__(self, index: int | Key) -> StepRecord | Series:
        """``run[step]``: what was recorded in a step; ``run[names, kinds]``: `series`.

        Raises:
            KeyError: there is no such step; the message says which there are.
        """
        if isinstance(index, tuple):
            return self.series(*index)
        ranks, error = self._records.ranks(index), None
        if not ranks or len(ranks) < len(self._parts.index):  # others may have written it since
            error = self._parts.look()
            ranks = self._records.ranks(index)
        if not ranks:
            raise error or KeyError(self._unknown(index))
        if error is not None and len(ranks) < len(self._headed):
            raise error  # the damaged part may have the step, too
        record = self._records.record(index)
        return replace(record, scalars=self.scalars.of(index, record))

    def series(self, names: str = "*", kinds: str = "*") -> Series:
        """Some sites over all steps: a mapping from (name, kind) to SiteSeries.

        Args:
            names: a name, or a glob for names, such as "encoder.*".
            kinds: a kind, which means its only or first tensor, or a glob, such as "output*".
        Raises:
            KeyError: nothing matches; the message suggests similar names.
        """
        self._parts.refresh()
        return Series(self._parts, self._records, names, kinds)

    def table(self, columns: Sequence[str] | None = None, *, channels: bool = False) -> Any:
        """Everything as a pyarrow.Table: one row per step, site and kind.

        Columns: step, rank (null: several, merged), site, kind, channel_dim (null: the tensor is
        one channel), channels (how many), shape, dtype, observed (calls merged), dead (dead
        channels, -1 if unknown); count (finite values), nan, posinf, neginf, zero, mean,
        m2 (sum of squared deviations: var * count), min, max, l1; hist_slots and hist_counts, the
        nonzero slots of the histogram (0: underflow, then the bins, then overflow). Of one rank's
        part of a model there are also the columns of its layout.

        Args:
            columns: which to read, by default all; an unknown name raises a ValueError.
            channels: one row per channel instead, of the steps that kept their channels: step,
                rank, site, kind, channel, and count to hist_counts as above.
        """
        schema = self._schema(columns, channels)
        tables = [require_pyarrow().Table.from_batches([], schema), *self._tables(schema, channels)]
        return require_pyarrow().concat_tables(tables).unify_dictionaries()

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of `table`."""
        return self._schema(None, False)

    def batches(
        self, columns: Sequence[str] | None = None, *, channels: bool = False
    ) -> Iterator[Any]:
        """`table` in pieces, for a run that is larger than memory: one pyarrow.Table per part, or
        per step where ranks are merged."""
        return self._tables(self._schema(columns, channels), channels)

    def _schema(self, columns: Sequence[str] | None, channels: bool) -> Any:
        self._parts.refresh()
        of_one = self._parts.is_of_one_rank()
        schema = (schema_of if of_one else merged_schema)(CHANNELS if channels else TENSORS)
        for name in columns or ():
            if name not in schema.names:
                alike = did_you_mean(str(name), schema.names)
                raise ValueError(f"columns has {name!r}: expected columns of the run{alike}")
        fields = [schema.field(name) for name in columns or schema.names]
        return require_pyarrow().schema(fields)

    def _tables(self, schema: Any, channels: bool) -> Iterator[Any]:
        folder = CHANNELS if channels else TENSORS
        if self._parts.is_stored():
            return (table for _, table in self._parts.tables(folder, schema.names))
        found = self._records.tables(folder)
        return (table.select(schema.names).cast(schema) for _, table in found)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """`batches` by the Arrow PyCapsule interface: ``polars.DataFrame(run)``."""
        schema = self.schema
        batches = (batch for table in self._tables(schema, False) for batch in table.to_batches())
        reader = require_pyarrow().RecordBatchReader.from_batches(schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def to_pandas(self, *, channels: bool = False) -> Any:
        """`table` as a pandas.DataFrame without columns of lists, shapes as text; needs pandas.

        channels: one row per channel instead, of the steps that kept their channels.
        """
        is_nested = require_pyarrow().types.is_nested
        schema = self._schema(None, channels)
        names = [one.name for one in schema if one.name == "shape" or not is_nested(one.type)]
        table = self.table(names, channels=channels)
        try:
            frame = table.to_pandas()
        except ImportError as error:
            raise ImportError(f"to_pandas needs pandas ({error}): pip install pandas") from error
        if "shape" in frame:
            frame["shape"] = ["x".join(map(str, shape)) for shape in frame["shape"]]
        return frame

    def _where(self, step: int, rank: int) -> Where:
        """Where a record is: in the known parts, or else in the parts that exist now."""
        where = self._parts.index.get(rank, {}).get(step)
        if where is None:
            error = self._parts.look()
            where = self._parts.index.get(rank, {}).get(step)
            if where is None:
                raise error or KeyError(self._unknown(step))
        return where

    def _unknown(self, step: object) -> str:
        """The error message for a step that does not exist."""
        if isinstance(step, str):
            return f"{step!r} is no step: run[{step!r}, 'output'] has this site in all steps"
        steps, path = self._records.steps(), printable(str(self.path))
        of = "" if self.rank is None else f" of rank {self.rank}"
        if not steps:
            return f"step {step}: {path} has no steps{of} yet"
        return f"step {step}: {path} has {len(steps)} steps{of} in {steps[0]}..{steps[-1]}"


def _runs_beside(path: Path) -> list[str]:
    """The runs in the directory where `path` would be."""
    if not path.parent.is_dir():
        return []
    return [str(other) for other in path.parent.iterdir() if (other / RUN_JSON).is_file()]
