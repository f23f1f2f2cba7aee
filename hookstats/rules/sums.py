"""Sums: the gradients of biases, beside the sums of their layers' gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.derived import Columns, of_rows

_ADDS_LAST = ("Linear", "Conv", "LayerNorm", "BatchNorm", "GroupNorm")
"""How the names of layers begin that add their bias to what they give."""


class Sums:
    """Of R channels: what arrived in the biases of layers, and in the layers' outputs.

    A layer adds its bias to each value of a channel; so the gradient of the bias is the sum of the
    gradients of the channel.
    """

    def __init__(self) -> None:
        self.all_biases: Float64 = np.empty((0, 0))
        """float64 [B, R]: the gradients of the biases in the steps that were added last."""
        self.all_sums: Float64 = np.empty((0, 0))
        """float64 [B, R]: the sums of the gradients of outputs in these steps."""
        self.all_before: Float64 = np.empty((0, 0))
        """float64 [B, R]: the gradients of the biases in the step before each; NaN where other
        layers were observed."""
        self.first: int | None = None
        """The site of the first of these biases; None without one."""
        self._biases: Int64 = np.empty(0, np.int64)  # rows of a record
        self._outputs: Int64 = np.empty(0, np.int64)
        self._last: Float64 = np.empty(0)  # the gradients of the biases in the last step
        self._step = 0

    @property
    def biases(self) -> Float64:
        """float64 [R]: the gradients of the biases in the step in question."""
        found: Float64 = self.all_biases[self._step]
        return found

    @property
    def sums(self) -> Float64:
        """float64 [R]: the sums of the gradients of outputs in this step."""
        found: Float64 = self.all_sums[self._step]
        return found

    @property
    def before(self) -> Float64:
        """float64 [R]: the gradients of the biases in the step before."""
        found: Float64 = self.all_before[self._step]
        return found

    def place(self, record: StepRecord, types: Mapping[str, str]) -> None:
        """Find the layers in a record; types: of modules, by name."""
        at = {(site.name, site.kind): i for i, site in enumerate(record.sites)}
        none = np.empty(0, np.int64)
        biases, outputs = [none], [none]
        self.first = None
        for i, site in enumerate(record.sites):
            owner = site.name.removesuffix(".bias")
            output = at.get((owner, "grad_output"))
            if site.kind != "param_grad" or owner == site.name or output is None:
                continue
            fits = record.sites[output].channels == site.channels == sum(site.shape)
            if fits and types.get(owner, "").startswith(_ADDS_LAST):
                self.first = i if self.first is None else self.first
                biases.append(np.arange(*record.offsets[i : i + 2]))
                outputs.append(np.arange(*record.offsets[output : output + 2]))
        self._biases, self._outputs = np.concatenate(biases), np.concatenate(outputs)
        self._last = np.full(len(self._biases), np.nan)

    def extend(self, channels: Sequence[Columns]) -> None:
        """Add steps of the sites that were placed; channels: the columns of theirs, by step."""
        self.all_biases = of_rows(channels, "mean", self._biases)
        means, counts = (of_rows(channels, name, self._outputs) for name in ("mean", "count"))
        self.all_sums = means * counts
        self.all_before = np.concatenate((self._last[None], self.all_biases[:-1]))
        self._last = self.all_biases[-1]

    def show(self, step: int) -> None:
        """Have the attributes be those of one of the steps that were added last, by its place."""
        self._step = step
