"""Sampling: the tensors that tell operators which elements histograms count, and graphs which steps
are recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats.stats.bins import Bins, sample_of
from hookstats.stats.sample import every_of


class Sampling:
    """The `sampling` of states (`stats.state.State`): on each device one tensor for hooks, and one
    for graphs, which run in all steps."""

    def __init__(
        self,
        bins: Bins | None,
        channel_bins: Bins | None,
        step: int = 0,
    ) -> None:
        self._asked = sample_of(bins), sample_of(channel_bins)
        self._values = [step, *map(every_of, self._asked), 1]
        self._tensors: dict[torch.device, Tensor] = {}
        self._of_graphs: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor | None:
        """int64 [3] on `device`; None if every element is counted."""
        if self._asked == (1, 1):
            return None
        if device not in self._tensors:
            self._tensors[device] = torch.tensor(self._values[:-1], device=device)
        return self._tensors[device]

    def of_graphs(self, device: torch.device) -> Tensor:
        """int64 [4] on `device`: with a last number that is 0 in steps that are not recorded."""
        if device not in self._of_graphs:
            self._of_graphs[device] = torch.tensor(self._values, device=device)
        return self._of_graphs[device]

    def begin_step(self, step: int, recorded: bool) -> None:
        """The number of the step that begins, and whether tensors are accumulated into it. Waits
        for no device: the current streams get to know it behind the work of the step before."""
        if recorded:
            self._set(0, step, self._tensors, self._of_graphs)
        if recorded != self._values[-1]:
            self._set(-1, int(recorded), self._of_graphs)

    def _set(self, column: int, value: int, *tensors: dict[torch.device, Tensor]) -> None:
        self._values[column] = value
        for each in tensors:
            for tensor in each.values():
                tensor.data[column] = value  # no new version: graphs may wait for their backward
