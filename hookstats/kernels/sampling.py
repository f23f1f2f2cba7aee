"""Sampling: the tensors that tell operators which elements histograms count."""

from __future__ import annotations

import torch
from torch import Tensor

from hookstats.stats.bins import Bins, is_sampled
from hookstats.stats.sample import every_of


class Sampling:
    """The `sampling` of states (`stats.state.State`), one tensor per device."""

    def __init__(self, bins: Bins | None, channel_bins: Bins | None, step: int = 0) -> None:
        self._bins = bins
        self._channel_bins = channel_bins
        self._step = step
        self._tensors: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor | None:
        """int64 [3] on `device`; None if every element is counted."""
        if not (is_sampled(self._bins) or is_sampled(self._channel_bins)):
            return None
        if device not in self._tensors:
            bins = self._bins, self._channel_bins
            every = (1 if one is None else every_of(one.sample) for one in bins)
            values = [self._step, *every]
            self._tensors[device] = torch.tensor(values, dtype=torch.int64, device=device)
        return self._tensors[device]

    def set_step(self, step: int) -> None:
        """The number of the step whose tensors are folded in from now on."""
        self._step = step
        for tensor in self._tensors.values():
            tensor.data[0] = step  # no new version: graphs may still wait for their backward
