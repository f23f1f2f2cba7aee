"""Version: whether a tensor was changed in place since."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch

_NOTHING = torch.empty(0, device="cpu")


class Version:
    """The version of a tensor when this was made; keeps none of its values.

    A view and its base share one: either may have been changed.
    """

    __slots__ = ("_probe", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # It has no values, but shares the version counter.
        with _DisableTorchDispatch():  # of a DTensor, too
            self._probe = tensor.detach()
        self._probe.data = _NOTHING
        self._version = tensor._version

    def is_past(self) -> bool:
        """Whether the tensor was changed in place since."""
        return self._probe._version != self._version
