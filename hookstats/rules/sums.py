"""Sums: the gradients of biases, beside the sums of their layers' gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.derived import Columns

if TYPE_CHECKING:
    from hookstats.rules.history import Sites

_ADDS_LAST = ("Linear", "Conv", "LayerNorm", "BatchNorm", "GroupNorm")
"""How the names of layers begin that add their bias to what they give."""


class Sums:
    """Of R channels: what arrived in the biases of layers, and in the layers' outputs.

    A layer adds its bias to each value of a channel; so the gradient of the bias is the sum of the
    gradients of the channel.
    """

    def __init__(self) -> None:
        self.biases: Float64 = np.empty(0)
        """float64 [R]: the gradients of the biases in this step."""
        self.sums: Float64 = np.empty(0)
        """float64 [R]: the sums of the gradients of outputs in this step."""
        self.before: Float64 = np.empty(0)
        """float64 [R]: the gradients of the biases in the step before; NaN where other layers were
        observed."""
        self.first: int | None = None
        """The site of the first of these biases; None without one."""
        self._biases: Int64 = np.empty(0, np.int64)  # rows of a record
        self._outputs: Int64 = np.empty(0, np.int64)

    def place(self, of: Sites, offsets: Int64, types: Mapping[str, str]) -> None:
        """Find the layers among sites; offsets: of their rows; types: of modules, by name."""
        none = np.empty(0, np.int64)
        biases, outputs = [none], [none]
        self.first = None
        for i, site in enumerate(of.sites):
            owner = site.name.removesuffix(".bias")
            output = of.at.get((owner, "grad_output"))
            if site.kind != "param_grad" or owner == site.name or output is None:
                continue
            fits = of.sites[output].channels == site.channels == sum(site.shape)
            if fits and types.get(owner, "").startswith(_ADDS_LAST):
                self.first = i if self.first is None else self.first
                biases.append(np.arange(*offsets[i : i + 2]))
                outputs.append(np.arange(*offsets[output : output + 2]))
        self._biases, self._outputs = np.concatenate(biases), np.concatenate(outputs)
        self.biases = np.full(len(self._biases), np.nan)

    def push(self, channels: Columns) -> None:
        """Add a step of the sites that were placed; channels: the columns of theirs."""
        self.before = self.biases
        self.biases = channels("mean")[self._biases]
        self.sums = channels("mean")[self._outputs] * channels("count")[self._outputs]
