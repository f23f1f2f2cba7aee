"""capture(): keeps the tensors that a model's modules take and return, and their gradients."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookstats.hooks.attach import MODULE_KINDS, check_kinds, check_model, make_reachable, select
from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.gradients import register, why_no_gradient
from hookstats.hooks.selection import Selector
from hookstats.records.keys import hint
from hookstats.tensors import pictures
from hookstats.tensors.capture_hooks import GRAD, TENSOR, BackwardReceiver, CallHooks
from hookstats.tensors.captured import MISSING, CapturedCall
from hookstats.tensors.recorder import Recorder

KeyFunction = Callable[[str, nn.Module], Hashable]
"""From a module's name and the module to the key that it is grouped by."""

_Self = TypeVar("_Self", bound="_Captured")
_DEFAULT_KINDS = ("output", "grad_output")


class _Captured(ABC):
    """What the captures of a model and of a tensor share: they end, and they have limits.

    Copied or pickled, as with a model that holds it, one becomes closed and empty.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def close(self) -> None:
        """Remove the hooks; what was captured stays. Again does nothing."""
        with self._recorder.lock:
            self._recorder.closed = True
            self._remove()

    def clear(self) -> None:
        """Forget what was captured, and all counts: as if it had begun now."""
        with self._recorder.lock:
            self._recorder.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are kept."""
        return self._recorder.nbytes

    @property
    def dropped(self) -> int:
        """How many calls the limits left out: not sampled, or dropped for `max_bytes`."""
        with self._recorder.lock:
            return sum(source.dropped for source in self._recorder.sources.values())

    def __enter__(self: _Self) -> _Self:
        if self._recorder.closed:
            raise ValueError("the capture is closed: expected an open one, from another capture()")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _remove(self) -> None:
        """Remove the hooks."""


class Capture(_Captured, Mapping[tuple[str, str], list[Any]]):
    """The tensors of a model's calls; `capture` makes it. As a context manager, closed at the end.

    A mapping from (name, kind) to a list with one entry a call, in order: a tensor, a tuple of them
    where a call has several, None where it has none, as of a gradient that never came. Lists of
    different kinds are of the same calls. ``c["lstm", "output[1]"]`` and ``c["head",
    "output.logits"]`` are lists of one tensor of several, by its path.
    """

    # A mapping is compared by its values: tensors have no one truth.
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
        """One entry a call; a KeyError names what is spelled alike.

        Raises:
            KeyError: no such module or kind is captured, or the module was not called yet.
        """
        match key:
            case (str(name), str(kind)):
                pass
            case _:
                raise KeyError(f"{key!r}: expected (name, kind), two strings")
        plain, path = _split(kind)
        kinds = self._recorder.kinds
        if name not in self._hooks or plain not in kinds:
            names = ((name, kind) for name in self._hooks for kind in kinds)
            raise KeyError(f"{key!r} is not captured: {hint(names, name, kind, (name,))}")
        calls = self.calls(name)
        if kind == plain:
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
        """(name, kind) of the modules of which calls are kept."""
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
        """The calls that are kept, of one module or of all, in the order in which they began.

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
                # Where no tensor of an argument is wanted, no hook sees a call begin.
                begins = {"input", "grad_input"}.intersection(self._recorder.kinds)
                state = "was not called yet" if begins else "has no call that ended yet"
                raise KeyError(
                    f"{name!r} {state}: expected a forward that calls it"
                    + (f"; calls that do not count: {skipped}" if skipped else "")
                )
            return [call for call in kept if call.name == name]

    @property
    def by_key(self) -> dict[Hashable, list[CapturedCall]]:
        """The calls that are kept, in order, by what `key` gave for their modules.

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
            name, kind: which tensor; of several, the first.
            call: which of the calls that are kept; by default the last.
            options: as of `pictures.grid`.
        Raises:
            KeyError: no such tensor is captured, or there is none yet.
            ValueError: that call has no such tensor, or one that is no feature map.
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
            plain, path = _split(kind)
            leaves = self.calls(name)[call].leaves(plain)
            reason = leaves.get(path, next(iter(leaves.values()), "no tensor"))
            raise ValueError(
                f"call = {call}: it has no {kind} of {name!r} ({reason}), expected one with it"
            )
        return pictures.grid(tensor, **options)

    def coverage(self) -> tuple[SiteCoverage, ...]:
        """What became of the calls, a row for each module and kind.

        A call counts once, however many tensors it has: as `observed` where one of them is kept, as
        `missing` where no gradient has come, else as skipped, by reason.
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
                reason = reasons[0] if reasons else "no tensor"
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
    """The gradients of one tensor; `capture` makes it. As a context manager, closed at the end."""

    def __init__(self, recorder: Recorder, tensor: Tensor) -> None:
        super().__init__(recorder)
        recorder.source(TENSOR)
        self._shape = tuple(tensor.shape)
        self._handles = register(BackwardReceiver(recorder), tensor)

    def __getstate__(self) -> dict[str, Any]:
        return {"_recorder": self._recorder, "_shape": self._shape, "_handles": []}

    @property
    def grads(self) -> list[Tensor]:
        """The gradients that came, one a backward, in order: each the total one, over all that
        used the tensor.

        Raises:
            RuntimeError: none came yet, or none could be taken.
        """
        with self._recorder.lock:
            source = self._recorder.source(TENSOR)
            found = [call.leaves(GRAD)[""] for call in self._recorder.kept()]
        tensors = [taken for taken in found if not isinstance(taken, str)]
        if not tensors and not source.skipped:
            reasons = ", ".join(dict.fromkeys(map(str, found)))
            raise RuntimeError(
                f"grads: none could be taken: {reasons}"
                if found
                else "grads: no gradient came yet, expected a backward through the tensor before"
            )
        return tensors

    def __repr__(self) -> str:
        calls = self._recorder.source(TENSOR).calls
        return f"TensorCapture(shape={self._shape}, {calls} backwards, {self.dropped} dropped)"

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


@overload
def capture(
    source: nn.Module,
    include: Selector | None = None,
    exclude: Selector | None = None,
    kinds: Collection[str] = ("output", "grad_output"),
    *,
    key: KeyFunction | None = None,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> Capture: ...


@overload
def capture(
    source: Tensor,
    *,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> TensorCapture: ...


def capture(
    source: nn.Module | Tensor,
    include: Selector | None = None,
    exclude: Selector | None = None,
    kinds: Collection[str] = _DEFAULT_KINDS,
    *,
    key: KeyFunction | None = None,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> Capture | TensorCapture:
    """Keep the tensors of a model's calls, forward and backward paired; or a tensor's gradients.

    Hooks are set at once, and removed by `close` or at the end of a with statement. The training is
    not changed by a bit: nothing is set but forward hooks and tensor hooks. What is kept is
    detached, and held by the capture alone, not by the model or its graph; a capture that nobody
    holds captures nothing.

    Args:
        source: a model, not compiled yet; or a tensor that requires a gradient, also one in the
            middle of a graph, of which every backward's gradient is kept.
        include, exclude: which modules, as in `watch`: by default those without children.
        kinds: "input", "output": the tensors of a module's calls. "grad_output": the gradients of
            its outputs. "grad_input": those of its inputs, the total ones, over all that use the
            tensor.
        key: a function (name, module) -> hashable by which `Capture.by_key` groups the calls.
        clone: whether to keep copies. False keeps the tensors' own memory, which saves the copy:
            whatever changes a tensor in place later changes what was captured, a view keeps all of
            its base's memory alive, and a gradient may be shared with ``.grad``.
        device: where to keep copies, such as "cpu"; by default where the tensors are.
        calls: how many calls of each module (backwards of a tensor) are kept at most: a uniform
            sample of all. Modules that are called equally often keep the same calls. It takes
            nothing from torch's random numbers.
        seed: of the sample.
        max_bytes: how many bytes of elements are kept at most: beyond, whole calls are dropped, the
            oldest of any module first; a call that is too large by itself is dropped alone.

    A forward that runs in a backward, which recomputes a checkpoint's activations, is no call: the
    call was the first one, and gets the gradients. (Of a reentrant checkpoint it has no graph, and
    no gradients.) A call that raises has an input and no output. Tensors without plain memory
    (sparse, fake, ...) are left out, of a DTensor this rank's part is kept; `Capture.coverage`
    counts all of these. A model that is compiled while it is captured runs in pieces, without
    fullgraph.

    Example:
        >>> with hs.capture(model, include="layer1.*") as c:
        ...     model(x).sum().backward()
        >>> c["layer1.conv", "output"][0].shape, c["layer1.conv", "grad_output"][0].shape
        >>> with hs.capture(y) as c:
        ...     y.square().sum().backward()
        >>> c.grads[0]

    Raises:
        ValueError: a bad argument, a selection that matches nothing, a compiled model, a tensor
            that requires no gradient.
    """
    if not isinstance(clone, bool):
        raise ValueError(f"clone = {clone!r}: expected True or False")
    for name, limit in (("calls", calls), ("max_bytes", max_bytes)):
        is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        if limit is not None and not is_count:
            raise ValueError(f"{name} = {limit!r}: expected an integer, 1 or more, or None")
    if not isinstance(seed, int):
        raise ValueError(f"seed = {seed!r}: expected an integer")
    limits = (clone, _device(device), calls, seed, max_bytes)
    if isinstance(source, Tensor):
        for name, value in (("include", include), ("exclude", exclude), ("key", key)):
            if value is not None:
                raise ValueError(f"{name} = {value!r}: expected None, source being a tensor")
        if kinds is not _DEFAULT_KINDS:
            raise ValueError(f"kinds = {kinds!r}: source is a tensor, expected none to be given")
        reason = why_no_gradient(source)
        if reason not in (None, "leaf"):
            raise ValueError(f"source: {reason}; expected a tensor that requires a gradient")
        return TensorCapture(Recorder((GRAD,), *limits), source)
    if not isinstance(source, nn.Module):
        raise ValueError(f"source = {source!r}: expected a torch.nn.Module or a torch.Tensor")
    check_model(source)
    check_kinds(kinds, MODULE_KINDS)
    modules = select(source, kinds, include, exclude, "capture").modules
    keys = None if key is None else _keys(key, modules)
    make_reachable(modules)
    kinds = tuple(kind for kind in MODULE_KINDS if kind in kinds)
    return Capture(Recorder(kinds, *limits), modules, keys)


def _split(kind: str) -> tuple[str, str]:
    """The kind without a path, and the path, as `leaves` has it."""
    plain = re.split(r"[.\[]", kind, maxsplit=1)[0]
    path = kind.removeprefix(plain)
    return plain, path if path.strip("[0]") else ""


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device = {device!r}: expected a torch.device or its name") from error


def _keys(key: KeyFunction, modules: Mapping[str, nn.Module]) -> dict[str, Hashable]:
    if not callable(key):
        raise ValueError(f"key = {key!r}: expected a function (name, module) -> hashable")
    keys = {name: key(name, module) for name, module in modules.items()}
    for name, value in keys.items():
        if not _is_hashable(value):
            raise ValueError(f"key: {value!r} for {name!r}, expected it to be hashable")
    return keys


def _is_hashable(value: object) -> bool:
    try:
        hash(value)  # of a tuple, also what is in it
    except TypeError:
        return False
    return True
