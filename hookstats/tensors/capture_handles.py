"""Capture and TensorCapture: the handles of captures, which hold what was captured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.gradients import register
from hookstats.records.keys import hint, parse_kind
from hookstats.records.reasons import NO_TENSOR
from hookstats.tensors import pictures
from hookstats.tensors.capture_hooks import GRAD, TENSOR, BackwardReceiver, CallHooks
from hookstats.tensors.captured import MISSING, CapturedCall
from hookstats.tensors.recorder import Recorder

_Self = TypeVar("_Self", bound="_Captured")


class _Captured(ABC):
    """The common part of the captures of a model and of a tensor: how they end, and their limits.

    A copy or a pickle, as of a model that holds a capture, is closed and empty.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def close(self) -> None:
        """Remove the hooks and keep what was captured; once closed, do nothing."""
        with self._recorder.lock:
            self._recorder.closed = True
            self._remove()

    def clear(self) -> None:
        """Forget what was captured and all counts, as if the capture began now."""
        with self._recorder.lock:
            self._recorder.clear()

    @property
    def nbytes(self) -> int:
        """The bytes of the kept elements."""
        return self._recorder.nbytes

    @property
    def dropped(self) -> int:
        """The number of calls that the limits left out: not sampled, or dropped for `max_bytes`."""
        with self._recorder.lock:
            return sum(source.dropped for source in self._recorder.sources.values())

    def __enter__(self: _Self) -> _Self:
        if self._recorder.closed:
            raise ValueError("the capture is closed: expected an open one, from another capture()")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _remove(self) -> None:
        """Remove the hooks."""


class Capture(_Captured, Mapping[tuple[str, str], list[Any]]):
    """The tensors of a model's calls; `capture` makes it. A context manager closes it at the end.

    A mapping from (name, kind) to a list with one entry per call, in order: a tensor; a tuple of
    tensors if the call has several; None if it has none, as of a gradient that never arrived. Lists
    of different kinds have the same calls. ``c["lstm", "output[1]"]`` and ``c["head",
    "output.logits"]`` are lists of one tensor of several, by its path.
    """

    # Mappings compare values, and a comparison of tensors is no bool.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(
        self,
        recorder: Recorder,
        modules: Mapping[str, nn.Module],
        keys: Mapping[str, Hashable] | None,
    ) -> None:
        super().__init__(recorder)
        self._keys = keys
        self._hooks = {name: CallHooks(recorder, name) for name in modules}
        try:
            for name, module in modules.items():
                recorder.source(name)
                if not isinstance(module, torch.jit.ScriptModule):
                    self._hooks[name].register(module)
        except BaseException:
            self.close()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {"_recorder": self._recorder, "_keys": None, "_hooks": {}}

    def __getitem__(self, key: tuple[str, str]) -> list[Any]:
        """One entry per call.

        Raises:
            KeyError: no such module or kind is captured, or the module was not called yet; the
                message names similar keys.
        """
        match key:
            case (str(name), str(kind)):
                pass
            case _:
                raise KeyError(f"{key!r}: expected (name, kind), two strings")
        plain, path, phase = parse_kind(kind)
        kinds = self._recorder.kinds
        if name not in self._hooks or plain not in kinds or phase is not None:
            names = ((name, kind) for name in self._hooks for kind in kinds)
            raise KeyError(f"{key!r} is not captured: {hint(names, name, kind, (name,))}")
        calls = self.calls(name)
        if path is None:
            return [getattr(call, kind) for call in calls]
        found = [call.leaves(plain) for call in calls]
        if not any(path in leaves for leaves in found):
            paths = dict.fromkeys(path for leaves in found for path in leaves)
            raise KeyError(
                f"{kind!r} of {name!r}: expected one of "
                f"{', '.join(repr(plain + (path or '[0]')) for path in paths) or 'no tensors'}"
            )
        taken = [leaves.get(path) for leaves in found]
        return [None if isinstance(leaf, str) else leaf for leaf in taken]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The (name, kind) of modules with kept calls."""
        names = dict.fromkeys(call.name for call in self.calls())
        return ((name, kind) for name in names for kind in self._recorder.kinds)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        calls = len(self.calls())
        return (
            f"Capture({len(self._hooks)} modules, kinds={self._recorder.kinds}, {calls} calls, "
            f"{self.nbytes} bytes, {self.dropped} dropped)"
        )

    def calls(self, name: str | None = None) -> list[CapturedCall]:
        """The kept calls, of one module or of all, in the order in which they began.

        Raises:
            KeyError: no such module is captured, or it was not called yet.
        """
        with self._recorder.lock:
            kept = self._recorder.kept()
            if name is None:
                return kept
            if name not in self._hooks:
                found = hint(((name, "") for name in self._hooks), name, "", ())
                raise KeyError(f"{name!r} is not captured: {found}")
            source = self._recorder.source(name)
            if not source.calls:
                skipped = ", ".join(f"{reason}: {n}" for reason, n in source.skipped.items())
                # Without a kind of the inputs, no hook sees a call begin.
                begins = {"input", "grad_input"}.intersection(self._recorder.kinds)
                state = "was not called yet" if begins else "has no call that ended yet"
                raise KeyError(
                    f"{name!r} {state}: expected a forward that calls it"
                    + (f"; calls that do not count: {skipped}" if skipped else "")
                )
            return [call for call in kept if call.name == name]

    @property
    def by_key(self) -> dict[Hashable, list[CapturedCall]]:
        """The kept calls, in order, by the key of their modules.

        Raises:
            ValueError: `capture` was given no key.
        """
        if self._keys is None:
            raise ValueError("by_key: expected a capture with key = a function (name, module)")
        groups: dict[Hashable, list[CapturedCall]] = {key: [] for key in self._keys.values()}
        for call in self.calls():
            groups[self._keys[call.name]].append(call)
        return groups

    def grid(self, name: str, kind: str = "output", call: int = -1, **options: Any) -> NDArray[Any]:
        """The channels of a captured tensor as one picture, uint8 [height, width, 3].

        Args:
            name, kind: which tensor; the first if there are several.
            call: which of the kept calls; by default the last.
            options: those of `pictures.grid`.
        Raises:
            KeyError: no such tensor is captured, or there is none yet.
            ValueError: that call has no such tensor, or the tensor is no feature map.
        """
        tensors = self[name, kind]
        try:
            tensor = tensors[call]
        except IndexError:
            dropped = self._recorder.source(name).dropped
            lost = f" ({dropped} dropped, for calls or max_bytes)" if dropped else ""
            raise ValueError(
                f"call = {call}: {len(tensors)} calls of {name!r} are kept{lost}, expected one of "
                "them"
            ) from None
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        if tensor is None:
            plain, path, _ = parse_kind(kind)
            leaves = self.calls(name)[call].leaves(plain)
            reason = leaves.get(path or "", next(iter(leaves.values()), NO_TENSOR))
            raise ValueError(
                f"call = {call}: it has no {kind} of {name!r} ({reason}), expected a call with it"
            )
        return pictures.grid(tensor, **options)

    def coverage(self) -> tuple[SiteCoverage, ...]:
        """What became of the calls, one row per module and kind.

        A call counts once, however many tensors it has: as `observed` if one of them is kept, as
        `missing` if no gradient has arrived, and otherwise as skipped, by reason.
        """
        with self._recorder.lock:
            kept = self._recorder.kept()
            return tuple(
                self._row(name, kind, [call for call in kept if call.name == name])
                for name in self._hooks
                for kind in self._recorder.kinds
            )

    def _row(self, name: str, kind: str, calls: list[CapturedCall]) -> SiteCoverage:
        source = self._recorder.source(name)
        skipped = dict(source.skipped)
        observed = missing = 0
        for call in calls:
            leaves = list(call.leaves(kind).values())
            reasons = [leaf for leaf in leaves if isinstance(leaf, str)]
            if len(reasons) < len(leaves):
                observed += 1
            elif MISSING in reasons:
                missing += 1
            else:
                reason = reasons[0] if reasons else NO_TENSOR
                skipped[reason] = skipped.get(reason, 0) + 1
        return SiteCoverage(
            name=name,
            kind=kind,
            forwards=observed + missing + sum(skipped.values()),
            observed=observed,
            skipped=skipped,
            backwards=sum(call.backwards(kind) for call in calls),
            missing=missing,
            error=source.error,
        )

    def _remove(self) -> None:
        for hooks in self._hooks.values():
            hooks.remove()


class TensorCapture(_Captured):
    """The gradients of one tensor; `capture` makes it. A context manager closes it at the end."""

    def __init__(self, recorder: Recorder, tensor: Tensor) -> None:
        super().__init__(recorder)
        recorder.source(TENSOR)
        self._shape = tuple(tensor.shape)
        receiver = BackwardReceiver(recorder)
        self._handles = register(receiver.receive, receiver.disable, tensor)

    def __getstate__(self) -> dict[str, Any]:
        return {"_recorder": self._recorder, "_shape": self._shape, "_handles": []}

    @property
    def grads(self) -> list[Tensor]:
        """The gradients that arrived, one per backward, in order: each the total over all uses of
        the tensor.

        Raises:
            RuntimeError: no gradient arrived yet, or none could be kept.
        """
        with self._recorder.lock:
            source = self._recorder.source(TENSOR)
            found = [call.leaves(GRAD)[""] for call in self._recorder.kept()]
        tensors = [taken for taken in found if not isinstance(taken, str)]
        if not tensors and not source.skipped:
            reasons = ", ".join(dict.fromkeys(map(str, found)))
            raise RuntimeError(
                f"grads: none could be kept: {reasons}"
                if found
                else "grads: no gradient arrived yet, expected a backward through the tensor before"
            )
        return tensors

    def __repr__(self) -> str:
        calls = self._recorder.source(TENSOR).calls
        return f"TensorCapture(shape={self._shape}, {calls} backwards, {self.dropped} dropped)"

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
