"""Rules about what goes into the model: scale, constants, shifts, batches that come again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least
from hookstats.stats.derived import amax, std
from hookstats.stats.derived import rms as rms_of


@dataclass(frozen=True, kw_only=True)
class Inputs(Rule):
    """The model's input is constant, far from zero mean and unit variance, or unlike before.

    An input is far if in the first step its rms is above `most`, or its mean more than `offset`
    times its deviation from zero, unless it is small ("Efficient BackProp", LeCun et al., 1998, has
    inputs of zero mean and unit variance); if one of its columns has `most` times the rms of the
    median column, and an rms of `most` / 2; or if no value is above `least`. Later a column
    dominates that is 8 times as large in three steps in a row as it, and the median column, were in
    any step before, 16 or more. It is unlike before if more of its values have to move to give the
    average histogram of the steps before (the total variation distance) than
    `past_inputs.usual_limit` says, in three steps in a row, or half of all in one; small batches
    have larger distances. Of integers, such as numbers of tokens, only values that no step before
    had count (see `past_inputs.SeenInputs.distance`). A channel is lost if it is all zero in `lost`
    steps in a row, 1024 values or more, while others are not, and fewer than 9 of 10 of its values
    were in each of the 20 steps or more before. It is constant if all values are equal, or if the
    first layer gives the same for each sample in two steps in a row. The alert is about the root's
    input, or that of the first module. Its value is the rms, or the distance.
    """

    name: ClassVar[str] = "inputs"
    advice: ClassVar[str] = "look at the batch of this step"

    most: float = at_least(0, 16.0)
    least: float = at_least(0, 0.02)
    offset: float = at_least(0, 4.0)
    lost: int = at_least(1, 3)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        past, site = history.inputs, history.inputs.site
        if past.constant_site is not None and past.constant >= 2 and history.pushed > 2:
            channels = record.sites[past.constant_site].channels
            says = f"is the same for each sample of the batch, in all {channels} channels"
            yield self.alert(record, past.constant_site, says, 0.0)
        if site is None:
            return
        columns = history.columns
        rms, least, most = (float(x[site]) for x in (history.rms, columns("min"), columns("max")))
        if least == most and columns("count")[site] > 1:
            yield self.alert(record, site, f"is {least:.3g} everywhere", rms)
            return
        if "float" in record.sites[site].dtype and history.pushed == 1:
            found = next(self._first(record, history, site), None)
            if found is not None:
                yield found
                return
        rows = slice(*record.offsets[site : site + 2])
        gone = (history.dead_steps[rows] >= self.lost) & (history.dead_values[rows] >= 1024)
        gone &= past.lived >= 20
        if gone.any() and not history.dead[rows].all():
            first = int(gone.argmax())
            says = (
                f"has {gone.sum()} of {len(gone)} channels that are all zero now and never were "
                f"before; the first is channel {first}"
            )
            since = int(history.dead_since[rows][first])
            helps = "look at what fills this channel: a column, a sensor, a colour"
            yield self.alert(record, site, says, gone.sum(), first, since=since, advice=helps)
            return
        grown = past.grown
        if grown is not None and grown.steps >= 3 and not _begins_with_norm(history):
            says = (
                f"has a column that dominates, as it never did: channel {grown.channel} has an rms "
                f"of {grown.rms:.3g}, at most {grown.before:.3g} in the steps before"
            )
            helps = "look at what scales this column: part of the data may go without it"
            about = grown.rms, grown.channel
            since = history.past_steps[-2]
            yield self.alert(record, site, says, *about, since=since, advice=helps)
            return
        if past.far >= 3 or (past.far and past.distance >= 0.5):
            usual = float(np.median(past.past_distances))
            says = (
                f"differs from the steps before: {past.distance:.0%} of its values lie elsewhere, "
                f"where {usual:.0%} is usual; its greatest magnitude is "
                f"{float(amax(columns)[site]):.3g}"
            )
            since = [*history.past_steps, record.step][-past.far :][0]
            yield self.alert(record, site, says, past.distance, since=since)

    def suspects(self, record: StepRecord, history: History) -> bool:
        past = history.inputs
        is_constant = past.constant_site is not None and past.constant == 1
        grows = past.grown is not None and past.grown.steps == 1
        return history.pushed > 2 and (is_constant or grows or past.far == 1)

    def _first(self, record: StepRecord, history: History, site: int) -> Iterator[Alert]:
        """What is wrong with the first input, the most exact finding first; a column or a size
        does no harm to a model whose first layer is a norm."""
        whole = history.columns
        rms, greatest = float(history.rms[site]), float(amax(whole)[site])
        deviation, mean = float(std(whole)[site]), float(whole("mean")[site])
        rows = slice(*record.offsets[site : site + 2])
        columns = rms_of(lambda name: history.channels(name)[rows])
        usual = float(np.median(columns[columns > 0])) if (columns > 0).any() else 0.0
        has_norm = _begins_with_norm(history)
        helps = "standardise it: subtract the mean, divide by the deviation, per feature"
        largest = int(np.nanargmax(columns)) if usual else 0
        if not has_norm and len(columns) > 2 and usual:
            most = float(columns[largest])
            if most > max(self.most * usual, self.most / 2):
                says = (
                    f"has a column that dominates: channel {largest} has an rms of {most:.3g}, "
                    f"the median channel {usual:.2g}"
                )
                yield self.alert(record, site, says, most, largest, advice=helps)
        if rms > self.most or (abs(mean) > self.offset * deviation and rms > 1):
            says = f"is not normalised: its mean is {mean:.3g}, its deviation {deviation:.3g}"
            yield self.alert(record, site, says, rms, advice=helps)
        if not has_norm and 0 < greatest < self.least:
            says = f"is small throughout: its greatest magnitude is {greatest:.2g}"
            helps = "see whether it is scaled twice, as by 255; standardise it"
            yield self.alert(record, site, says, greatest, advice=helps)


def _begins_with_norm(history: History) -> bool:
    """Whether the first layer of the model is a norm."""
    return "Norm" in next(iter(history.setup.modules.values()), "")


@dataclass(frozen=True, kw_only=True)
class RepeatedInputs(Rule):
    """The model gets a batch again that it had in one of the last 16 steps.

    The input is equal in all statistics. After 32 batches in a row that were new there is a
    warning, once `patience` steps in a row repeat one; if they repeated before, as where the data
    are few batches, there is a note. The alert's value is the number of steps in a row.
    """

    name: ClassVar[str] = "repeated inputs"
    advice: ClassVar[str] = (
        "make the loader's iterator once per epoch, and seed its sampler by epoch"
    )

    patience: int = 2

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        past, site = history.inputs, history.inputs.site
        if site is None or not past.repeated:
            return
        if past.varied >= 32:
            says = "is the same batch as in an earlier step, in several steps in a row"
            yield self.alert(record, site, says, past.repeated)
        elif past.repeated >= 5:
            says = "is one of the few batches that training has had so far"
            helps = f"right if these are all data; else {self.advice}"
            yield self.alert(record, site, says, past.repeated, severity="note", advice=helps)
