"""What recording would cost: the time of a recorded step, and its bytes on the disk."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from hookstats.preflight.finding import Line, skipped
from hookstats.preflight.given import Given
from hookstats.preflight.training import loss_of, projection
from hookstats.stats.messages import size
from hookstats.watching.watch import watch

RECORDING = "recording"
_PER_CHANNEL, _PER_TENSOR = 22, 80
"""Bytes on the disk of a recorded step, see docs/guides/long.md."""
_TIMES = 2


def of_recording(model: nn.Module, given: Given, gradients: dict[str, Tensor | None]) -> Line:
    """The times of a step with and without a watch, each the least of two, and its bytes."""
    named = {name: p for name, p in model.named_parameters() if gradients.get(name) is not None}
    if not named:
        return skipped(RECORDING, "no gradients")

    def step() -> None:
        output = given.call(model)
        loss = loss_of(given, output)
        loss = projection(output) if loss is None else loss
        if loss is None or not loss.requires_grad:
            return
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for parameter, gradient in zip(named.values(), found, strict=True):
            parameter.grad = gradient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = _least(step)
        with suppress(ValueError), watch(model, rules=False, every=1) as watched:

            def recorded() -> None:
                step()
                watched.step()

            took = _least(recorded)
            latest = watched.latest
            channels, tensors = latest.moments.shape[0], len(latest.sites)
            nbytes = 1000 * (_PER_CHANNEL * channels + _PER_TENSOR * tensors)
            return Line(
                RECORDING,
                f"{tensors} tensors: a recorded step takes {1000 * max(0.0, took - bare):.3g} ms "
                f"longer than {1000 * bare:.3g} ms, 1,000 of them {size(nbytes)}",
            )
    return skipped(RECORDING, "nothing to record")


def _least(action: Callable[[], None]) -> float:
    """The least time of several, in seconds; the device is waited for."""
    times = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)
