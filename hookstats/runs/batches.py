"""Batches: what the calls of a model got in the step of an incident, in a file of each."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.runs.files import naming
from hookstats.runs.format import batch_pt
from hookstats.stats.lazy_torch import torch


class BatchCall(NamedTuple):
    """One call of a model in a step, as it began."""

    model: str
    """Its name where a watch has several models, else ""."""
    args: tuple[Any, ...]
    """Tensors on the host, numbers, texts, None, and tuples, lists and dicts of these; what was
    anything else is a text that says its type."""
    kwargs: dict[str, Any]
    """As `args`."""
    rng: dict[str, Any]
    """The states of random number generators: "python", "numpy", "cpu", and devices, "cuda:0"."""

    def set_rng(self) -> None:
        """Set these random number generators as they were."""
        for name, state in self.rng.items():
            if name == "python":
                random.setstate(state)
            elif name == "numpy":
                kind, keys, *rest = state
                np.random.set_state((kind, keys.numpy(), *rest))  # noqa: NPY002 - of all who draw
            elif name == "cpu":
                torch.set_rng_state(state)
            else:
                device = torch.device(name)
                getattr(torch, device.type).set_rng_state(state, device)


class Batch(NamedTuple):
    """What the calls of a step got, of one rank; see `Watch.keep_batches`."""

    step: int
    calls: tuple[BatchCall, ...]


def batch_bytes(step: int, calls: list[Mapping[str, Any]]) -> bytes:
    """A batch as the content of its file; each call has the fields of `BatchCall`."""
    file = io.BytesIO()
    torch.save({"step": step, "calls": calls}, file)
    return file.getvalue()


def read_batch(run: Path, ranks: list[int], alert: Alert) -> Batch | None:
    """What a run has of the step in which an alert began, or of that of the alert; None where it
    has neither.

    ranks: those to look at, where the alert is of the whole model.

    Raises:
        ValueError: the file is damaged; the message names it.
    """
    for step in (alert.since, alert.step):
        for rank in ranks if alert.rank is None else [alert.rank]:
            path = run / batch_pt(rank, step)
            if path.exists():
                with naming(path):
                    found = torch.load(path, map_location="cpu", weights_only=True)
                    return Batch(found["step"], tuple(BatchCall(**one) for one in found["calls"]))
    return None
