"""The hooks of `capture`, which pair the inputs, the outputs and the gradients of one call.

Like the hooks of `watch` they return nothing and raise nothing. They hold neither a tensor of the
model nor captured tensors: the recorder holds these, and they go with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookstats._torch import current_graph_task_id
from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.gradients import register, why_no_gradient
from hookstats.hooks.inert import Hook, marked
from hookstats.hooks.leaves import Leaf, argument_leaves, leaves
from hookstats.hooks.readable import detour, without_torch_function
from hookstats.records.reasons import LEAF
from hookstats.tensors.captured import MISSING, CapturedCall
from hookstats.tensors.recorder import Recorder

TENSOR, GRAD = "tensor", "grad"
"""The name and the kind of the calls of a recorder of one tensor; these calls are backwards."""


class _Begun(NamedTuple):
    """A call that has begun."""

    thread: int
    kwargs: int
    """The id of the keyword arguments, which no other running call has."""
    call: weakref.ref[CapturedCall] | None
    """None if the call is not kept. Weak: a call that raises never ends, and may be dropped."""
    backwards: set[int] | None
    """The backwards that went through the call; None if no input is a leaf, and none are noted."""


class CallHooks:
    """The forward hooks of one module, and its calls that have begun."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = weakref.ref(recorder)
        self._name = name
        self._kinds = frozenset(recorder.kinds)
        self._begun: list[_Begun] = []
        self._handles: list[RemovableHandle] = []
        self._leaf_hooks: weakref.WeakSet[LeafHook] = weakref.WeakSet()

    def register(self, module: nn.Module) -> None:
        """Set the hooks that the kinds need."""
        if not self._kinds.isdisjoint({"input", "grad_input"}):
            before = _BeforeHook(self)
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            self._handles.append(marked(handle))
        if self._kinds != {"input"}:
            after = _AfterHook(self)
            handle = module.register_forward_hook(after, with_kwargs=True)
            self._handles.append(marked(handle))

    def remove(self) -> None:
        """Remove every hook, also those of leaves; hooks of tensors in a graph do nothing now."""
        while self._handles:
            self._handles.pop().remove()
        for hook in list(self._leaf_hooks):
            hook.remove()
        self._begun.clear()

    def before(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        recorder = self._recorder()
        if recorder is None or recorder.closed:
            return
        with recorder.lock, without_torch_function():
            call, backwards = self._begin(recorder), None
            if call is not None:
                backwards = self._take(recorder, call, "input", argument_leaves(args, kwargs))
            if self._kinds != {"input"}:
                # Calls that raised never end, and other calls reuse the ids of their arguments.
                self._begun = [one for one in self._begun if one.kwargs != id(kwargs)]
                kept = None if call is None else weakref.ref(call)
                self._begun.append(_Begun(threading.get_ident(), id(kwargs), kept, backwards))

    def after(self, kwargs: Mapping[str, object], output: object) -> None:
        """A call ends."""
        recorder = self._recorder()
        if recorder is None or recorder.closed:
            return
        with recorder.lock, without_torch_function():
            call, backwards = self._end(recorder, id(kwargs))
            if call is not None and recorder.keeps(call):
                self._take(recorder, call, "output", leaves(output), backwards)

    def _begin(self, recorder: Recorder) -> CapturedCall | None:
        reason = detour()
        if reason is not None:
            recorder.source(self._name).skipped[reason] += 1
            return None
        return recorder.begin(self._name)

    def _end(self, recorder: Recorder, kwargs: int) -> tuple[CapturedCall | None, set[int] | None]:
        """The call that ends, and where to note its backwards."""
        thread = threading.get_ident()
        own = [i for i, one in enumerate(self._begun) if one.thread == thread]
        if not own:  # the call began before the capture, or no hook sees calls begin
            return self._begin(recorder), None
        # A later pre-hook may have replaced the arguments that were seen.
        same = [i for i in own if self._begun[i].kwargs == kwargs]
        found = self._begun.pop((same or own)[-1])
        return None if found.call is None else found.call(), found.backwards

    def _take(
        self,
        recorder: Recorder,
        call: CapturedCall,
        kind: str,
        found: Iterable[Leaf],
        backwards: set[int] | None = None,
    ) -> set[int] | None:
        """Take the tensors of a call, and await their gradients.

        backwards: where to note the backwards that bring gradients. Returns where to note those of
        the call's outputs.
        """
        gradient = f"grad_{kind}" if f"grad_{kind}" in self._kinds else None
        asked: set[int] | None = None
        try:
            for path, tensor in found:
                if kind in self._kinds:
                    call.add(kind, path, recorder.take(call, tensor))
                    if not recorder.keeps(call):  # the tensor did not fit
                        break
                if gradient is None and backwards is None:
                    continue
                receiver = _Receiver(recorder, call, gradient, path, backwards)
                reason = why_no_gradient(tensor)
                if reason is None:
                    register(receiver.receive, receiver.disable, tensor)
                elif reason == LEAF and kind == "input":
                    asked = set() if asked is None else asked
                    self._leaf_hook(tensor).waiting.append((receiver, asked))
                    reason = None
                if gradient is not None:
                    call.add(gradient, path, reason or MISSING)
        except Exception as error:  # a container of the user may raise
            recorder.fail(self._name, error)
        return asked

    def _leaf_hook(self, leaf: Tensor) -> LeafHook:
        """The hook of a leaf, set at the first call: one hook for any number of calls."""
        for hook in (leaf._backward_hooks or {}).values():
            if isinstance(hook, LeafHook) and hook.owner is self:
                return hook
        hook = LeafHook(self)
        hook.handle = leaf.register_hook(hook)  # type: ignore[no-untyped-call]
        self._leaf_hooks.add(hook)
        return hook


class _BeforeHook(Hook):
    """Forward pre-hook, with keyword arguments."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: CallHooks) -> None:
        self._hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        if rest:  # see `Hook`
            self._hooks.before(args, *rest)


class _AfterHook(Hook):
    """Forward hook, with keyword arguments."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: CallHooks) -> None:
        self._hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        if len(rest) == 2:  # see `Hook`
            self._hooks.after(*rest)


for _hook in (_BeforeHook, _AfterHook):
    break_graphs(_hook.__call__, "hookstats.capture keeps the tensors of every call: close it")


class BackwardReceiver:
    """Takes the gradients of one tensor; each backward is a call for the recorder."""

    __slots__ = ("_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str = TENSOR) -> None:
        self._recorder = weakref.ref(recorder)
        self._name = name

    def receive(self, gradient: Tensor, first: bool) -> None:
        """Take a gradient that arrived."""
        self._add(gradient)

    def disable(self, error: Exception) -> None:
        """Capture no more calls of the module, or gradients of the tensor."""
        recorder = self._recorder()
        if recorder is not None:
            with recorder.lock:
                recorder.fail(self._name, error)

    def _add(self, gradient: Tensor) -> None:
        recorder = self._recorder()
        if recorder is None or recorder.closed:
            return
        with recorder.lock, without_torch_function():
            call = recorder.begin(TENSOR)
            if call is not None:
                call.add(GRAD, "", recorder.take(call, gradient))


class _Receiver(BackwardReceiver):
    """Takes the gradients of one tensor of a call as long as the call is kept."""

    __slots__ = ("_backwards", "_call", "_kind", "_path")

    def __init__(
        self,
        recorder: Recorder,
        call: CapturedCall,
        kind: str | None,
        path: str,
        backwards: set[int] | None,
    ) -> None:
        """kind: None to note only the backward."""
        super().__init__(recorder, call.name)
        self._call = weakref.ref(call)
        self._kind = kind
        self._path = path
        self._backwards = backwards

    def is_awaited(self) -> bool:
        """Whether a gradient that arrives now is kept."""
        recorder, call = self._recorder(), self._call()
        return recorder is not None and call is not None and recorder.keeps(call)

    def _add(self, gradient: Tensor) -> None:
        backward = current_graph_task_id()
        if self._backwards is not None:
            self._backwards.add(backward)
        recorder, call = self._recorder(), self._call()
        if self._kind is None or recorder is None or call is None:
            return
        with recorder.lock, without_torch_function():
            if recorder.keeps(call):
                taken = recorder.take(call, gradient)
                call.add(self._kind, self._path, taken, backward)


class LeafHook(Hook):
    """Tensor hook of a leaf that is an input: hands the gradient to calls of one module.

    A leaf outlives the graph and the calls that take it. Its gradient belongs to the calls through
    which the same backward went, and to which it brought the gradient of an output before.
    """

    __torch_unserializable__ = True

    def __init__(self, owner: CallHooks) -> None:
        self.owner = owner
        self.handle: RemovableHandle | None = None
        self.waiting: list[tuple[_Receiver, set[int]]] = []

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        self.waiting = [entry for entry in self.waiting if entry[0].is_awaited()]
        for receiver, backwards in self.waiting:
            if current_graph_task_id() in backwards:
                receiver.receive(gradient, True)

    def remove(self) -> None:
        """Remove the hook from its leaf."""
        if self.handle is not None:
            self.handle.remove()
        self.waiting.clear()
