"""Sampling: the tensors that tell operators which elements histograms count."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats.stats.bins import Bins, sample_of
from hookstats.stats.sample import every_of


class Sampling:
    """The `sampling` of states (`stats.state.State`), one tensor per device."""

    def __init__(
        self,
        bins: Bins | None,
        channel_bins: Bins | None,
        step: int = 0,
    ) -> None:
        self._asked = sample_of(bins), sample_of(channel_bins)
        self._values = [step, *map(every_of, self._asked)]
        self._tensors: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor | None:
        """int64 [3] on `device`; None if every element is counted."""
        if self._asked == (1, 1):
            return None
        if device not in self._tensors:
            self._tensors[device] = torch.tensor(self._values, dtype=torch.int64, device=device)
        return self._tensors[device]

    def set_step(self, step: int) -> None:
        """The number of the step whose tensors are accumulated from now on."""
        self._values[0] = step
        for tensor in self._tensors.values():
            tensor.data[0] = step  # no new version: graphs may still wait for their backward
