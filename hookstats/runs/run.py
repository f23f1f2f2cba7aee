"""open_run and Run: reading a run directory, even while a training run writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hookstats.records.alike import did_you_mean
from hookstats.records.display import view_of
from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.runs.format import RUN_JSON, require_pyarrow
from hookstats.runs.headers import bins_of, first_rank, read_rank_json, read_run_json
from hookstats.runs.parts import Parts, Where
from hookstats.runs.scalars import Scalars
from hookstats.runs.series import Series, span
from hookstats.stats.arguments import check_path
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from hookstats.show.plot import Plots


def open_run(path: str | os.PathLike[str], *, skip_damaged: bool = False) -> Run:
    """The run that `hookstats.watch(..., out=path)` wrote or is writing.

    Args:
        skip_damaged: leave out parts that are damaged, with one RuntimeWarning each; by default
            whatever needs a damaged part raises a ValueError that names the part.

    Raises:
        FileNotFoundError: nothing is at `path`; the message names runs with a similar name.
        ValueError: `path` is no path or no run directory, run.json is damaged, or a newer hookstats
            wrote it.
        ImportError: pyarrow is not installed.
    """
    return Run(path, skip_damaged=skip_damaged)


class Run:
    """A run directory. Every call sees the parts that are finished at that time.

    ``run[step]`` is the StepRecord of rank 0, ``run.record(step, rank)`` that of another rank;
    ``run["layer1.*", "output"]`` is a Series, some sites over all steps.
    A run is one line of steps: if training went back to a checkpoint, the earlier records of that
    step and of later ones are void, and left out of everything.
    A damaged part is a ValueError that names the file (see `open_run`); steps in other parts can
    still be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, skip_damaged: bool = False) -> None:
        require_pyarrow()
        self.path = check_path("path", path)
        if not self.path.exists():
            alike = did_you_mean(str(self.path), _runs_beside(self.path))
            raise FileNotFoundError(f"path = {str(path)!r}: no such run{alike}")
        if not (self.path / RUN_JSON).is_file():
            raise ValueError(f"path = {str(path)!r}: expected a run directory, with {RUN_JSON}")
        read_run_json(self.path)
        self._first = first_rank(self.path)
        content = read_rank_json(self.path, self._first)
        self.header: dict[str, Any] = content["header"]
        """The settings and the model, as the lowest rank wrote them; see `header_of`."""
        self.created: str | None = content.get("created")
        """When the run was begun, or last continued: ISO 8601, UTC."""
        self.version: str | None = content.get("hookstats")
        """The hookstats that wrote the run."""
        self.bins = bins_of(self.header, "bins")
        """The bins of every tensor's histogram; None where there were none."""
        self.channel_bins = bins_of(self.header, "channel_bins")
        """The bins of every channel's histogram; None where there were none."""
        self._parts = Parts(self.path, self.bins, self.channel_bins, skip_damaged=skip_damaged)
        self._skip_damaged = skip_damaged
        self._scalars: dict[int, Scalars] = {}

    def __repr__(self) -> str:
        try:
            return f"Run({str(self.path)!r}, {self._holds()})"
        except (OSError, ValueError) as error:
            return f"Run({str(self.path)!r}, unreadable: {error})"

    def _holds(self) -> str:
        """What the run holds, in words."""
        self._parts.refresh()
        if not self._parts.index:
            return "no steps yet"
        records = next(iter(self._parts.index.values()))
        sites = next(reversed(records.values())).rows
        ranks = list(self._parts.index)
        of = "" if ranks == [0] else f", ranks {', '.join(map(str, ranks))}"
        return f"{span(list(records))}, {sites} site{'s' * (sites != 1)}{of}"

    def _ipython_key_completions_(self) -> list[int | Key]:
        """What notebooks offer after ``run[``: steps, and the sites of the last of them."""
        steps = self.steps
        return [*steps, *(self.record(steps[-1]) if steps else ())]

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @property
    def closed(self) -> str | None:
        """When the run was closed: ISO 8601, UTC; None if it is still running or was killed."""
        closed: str | None = read_rank_json(self.path, self._first).get("closed")
        return closed

    @property
    def coverage(self) -> dict[str, Any] | None:
        """The coverage report that ended the run; None if it is still running or was killed."""
        coverage: dict[str, Any] | None = read_rank_json(self.path, self._first)["coverage"]
        return coverage

    def header_of(self, rank: int) -> dict[str, Any]:
        """The settings and the model of one rank: pipeline ranks differ in their modules.

        Raises:
            FileNotFoundError: the rank has written no header.
        """
        header: dict[str, Any] = read_rank_json(self.path, rank)["header"]
        return header

    @property
    def damaged(self) -> dict[str, str]:
        """The damaged parts that were left out so far, and what is wrong with each."""
        return dict(self._parts.damaged)

    @property
    def plot(self) -> Plots:
        """Figures of the run; they need matplotlib."""
        plots: Plots = view_of(self, "plots")
        return plots

    @property
    def steps(self) -> list[int]:
        """The steps that rank 0 recorded, ascending."""
        return self.steps_of(0)

    def steps_of(self, rank: int) -> list[int]:
        """The steps that `rank` recorded, ascending."""
        self._parts.refresh()
        return list(self._parts.index.get(rank, ()))

    def thinned_of(self, rank: int = 0) -> int:
        """The number of steps that `rank` recorded and that were deleted to keep to `max_bytes`.

        Steps of damaged parts that are left out count, too.
        """
        self._parts.refresh()
        return self._parts.lost(rank)

    def gaps_of(self, rank: int = 0) -> dict[int, str]:
        """The steps that were due and that `rank` lost, ascending, each with the reason.

        The reason is "disk" where the disk took no part for long, "stall" where the training would
        have had to wait, "error" where something failed. What a kill loses is not among them.
        """
        self._parts.refresh()
        return self._parts.gaps(rank)

    @property
    def scalars(self) -> Scalars:
        """The numbers that rank 0 logged: ``run.scalars["loss"].values``; also of steps that are
        not recorded."""
        return self.scalars_of(0)

    def scalars_of(self, rank: int) -> Scalars:
        """The numbers that `rank` logged, as `scalars` has those of rank 0."""
        if rank not in self._scalars:
            self._scalars[rank] = Scalars(self.path, rank, skip_damaged=self._skip_damaged)
        return self._scalars[rank]

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

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: Key) -> Series: ...
    def __getitem__(self, index: int | Key) -> StepRecord | Series:
        """``run[step]``: what rank 0 recorded in a step; ``run[names, kinds]``: `series`."""
        return self.series(*index) if isinstance(index, tuple) else self.record(index)

    def record(self, step: int, rank: int = 0) -> StepRecord:
        """What `rank` recorded in `step`; a KeyError names the steps or ranks that exist."""
        where = self._where(step, rank)
        try:
            record = self._parts.record(where)
            return replace(record, scalars=self.scalars_of(rank).of(step))
        except FileNotFoundError:  # deleted since, to keep to max_bytes
            self._parts.look()
            if self._parts.index.get(rank, {}).get(step) == where:
                raise
        except (OSError, ValueError) as error:
            if not self._parts.skip(where.part, error):
                raise
        return self.record(step, rank)

    def series(self, names: str = "*", kinds: str = "*", rank: int = 0) -> Series:
        """Some sites over all steps of `rank`: a mapping from (name, kind) to SiteSeries.

        Args:
            names: a name, or a glob for names, such as "encoder.*".
            kinds: a kind, which means its only or first tensor, or a glob, such as "output*".
        Raises:
            KeyError: nothing matches; the message suggests similar names.
        """
        self._parts.refresh()
        return Series(self._parts, names, kinds, rank)

    def table(self) -> Any:
        """Everything as a pyarrow.Table: one row per step, rank, site and kind, as written.

        Columns: step, rank, site, kind, channel_dim (null: the tensor is one channel), shape,
        dtype, observed (calls merged); of the whole tensor tensor_count (finite values),
        tensor_nan, tensor_posinf, tensor_neginf, tensor_zero, tensor_mean, tensor_var (population),
        tensor_min, tensor_max, tensor_l1; a list over channels each: count, nan, ..., l1;
        hist_slots and hist_counts, the nonzero slots of the tensor's histogram (0: underflow, then
        the bins, then overflow); channel_hist_slots (channel * slots + slot) and
        channel_hist_counts.
        """
        pa = require_pyarrow()
        schema = self.schema
        tables = [schema.empty_table(), *self._parts.tables(schema)]
        return pa.concat_tables(tables).unify_dictionaries()

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of `table`: with the columns m3, m4, tensor_m3 and tensor_m4 where any
        part has them (null in the rows of others)."""
        self._parts.refresh()
        return self._parts.schema()

    def batches(self) -> Iterator[Any]:
        """`table` in pieces, one pyarrow.Table per part: for a run that is larger than memory."""
        return self._parts.tables(self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """`batches` by the Arrow PyCapsule interface: ``polars.DataFrame(run)``."""
        schema = self.schema
        tables = self._parts.tables(schema)
        batches = (batch for table in tables for batch in table.to_batches())
        reader = require_pyarrow().RecordBatchReader.from_batches(schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """`table` as a pandas.DataFrame, lists as NumPy arrays; needs pandas."""
        table = self.table()
        try:
            return table.to_pandas()
        except ImportError as error:
            raise ImportError(f"to_pandas needs pandas ({error}): pip install pandas") from error

    def _where(self, step: int, rank: int) -> Where:
        """Where a record is: in the known parts, or else in the parts that exist now."""
        where = self._parts.index.get(rank, {}).get(step)
        if where is None:
            error = self._parts.look()
            where = self._parts.index.get(rank, {}).get(step)
            if where is None:
                raise error or KeyError(self._unknown(step, rank))
        return where

    def _unknown(self, step: int, rank: int) -> str:
        """The error message for a step that does not exist."""
        ranks, path = list(self._parts.index), printable(str(self.path))
        if not ranks:
            return f"step {step}: {path} has no steps yet"
        steps = list(self._parts.index.get(rank, ()))
        if not steps:
            return f"rank {rank}: {path} has the ranks {', '.join(map(str, ranks))}"
        return (
            f"step {step}: {path} has {len(steps)} steps of rank {rank} in {steps[0]}..{steps[-1]}"
        )


def _runs_beside(path: Path) -> list[str]:
    """The runs in the directory where `path` would be."""
    if not path.parent.is_dir():
        return []
    return [str(other) for other in path.parent.iterdir() if (other / RUN_JSON).is_file()]
