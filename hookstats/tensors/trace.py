"""trace(): records what ran, call by call, in a Trace."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from hookstats._torch import forget_global_hook
from hookstats.hooks.attach import check_model, make_reachable, select
from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.inert import Hook
from hookstats.hooks.leaves import argument_leaves, leaves
from hookstats.hooks.readable import detour, without_torch_function
from hookstats.hooks.selection import Selection, Selector, check_selector
from hookstats.records.keys import label
from hookstats.stats.arguments import check_optional_integer
from hookstats.stats.messages import error_text
from hookstats.stats.printable import shown
from hookstats.tensors.calls import CALL_COLUMNS, GRADIENT_COLUMNS, Call, TracedTensor
from hookstats.tensors.trace_table import as_text


class Trace:
    """What ran, in order; `trace` makes it. It prints as a table, and records in a `with` block.

    A second `with` block adds its calls to those of the first, and goes on counting.

    Attributes:
        calls: the calls of modules, in the order in which they began.
        gradients: the gradients of parameters, in backward order.
    """

    def __init__(
        self,
        model: nn.Module | None,
        depth: int | None,
        include: Selector | None,
        exclude: Selector | None,
    ) -> None:
        self.calls: list[Call] = []
        self.gradients: list[TracedTensor] = []
        self._model = model
        self._depth = depth
        self._include = "*" if include is None else include
        self._exclude = exclude
        self._selected = include is not None or exclude is not None
        self._known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()
        self._labels: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._threads = threading.local()
        self._handles: list[RemovableHandle] = []
        check_selector("include", include)
        check_selector("exclude", exclude)
        if model is not None:
            select(model, ("output", "param_grad"), self._include, exclude, "trace")

    @property
    def stopped(self) -> Call | None:
        """The last call that did not return, since an exception ended it; None if there is none."""
        return next((call for call in reversed(self.calls) if call.outputs is None), None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The calls in plain Python types."""
        return [call.to_dict() for call in self.calls]

    def to_pandas(self, *, gradients: bool = False) -> Any:
        """The calls as a data frame, one row each; or the gradients.

        Args:
            gradients: False for the calls, with the columns name, type, index, depth, input and
                output (tuples of shapes, one for each tensor), dtype, mean, std, nonfinite (of
                `Call.output`), error; True for the gradients, with name, shape, dtype, mean, std,
                nonfinite.
        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError(f"data frames need pandas ({error}): pip install pandas") from error
        if gradients:
            return pandas.DataFrame(map(astuple, self.gradients), columns=GRADIENT_COLUMNS)
        return pandas.DataFrame([call.to_row() for call in self.calls], columns=CALL_COLUMNS)

    def __str__(self) -> str:
        return as_text(self.calls, self.gradients, self._selected)

    def __repr__(self) -> str:
        return f"Trace(calls={len(self.calls)}, gradients={len(self.gradients)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # in IPython and notebooks

    def __enter__(self) -> Trace:
        if self._handles:
            raise RuntimeError("the trace is recording already: expected one `with` at a time")
        before, after = _Before(self), _After(self)
        if self._model is None:
            self._handles += (
                register_module_forward_pre_hook(before),
                register_module_forward_hook(after, with_kwargs=True, always_call=True),
            )
            return self
        self._learn(self._model, "")
        for module in list(self._known):
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                self._handles += (
                    module.register_forward_pre_hook(before),
                    module.register_forward_hook(after, with_kwargs=True, always_call=True),
                )
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            handle = self._handles.pop()
            handle.remove()
            forget_global_hook(handle.id)
        self._known.clear()
        self._threads = threading.local()

    def _learn(self, root: nn.Module, prefix: str) -> None:
        """Name the modules in `root`, and have the gradients of their parameters recorded."""
        shown = Selection(root, self._include, self._exclude)
        chosen = set(shown.modules.values())
        for name, module in Selection(root, "*").modules.items():
            if module not in self._known:
                full = ".".join(filter(None, (prefix, name)))
                self._known[module] = _Known(full, module in chosen)
        for name, parameter in shown.parameters.items():
            if parameter.requires_grad:
                full = ".".join(filter(None, (prefix, name)))
                hook = _ParameterHook(self, full)
                handle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def _lookup(self, module: nn.Module) -> _Known:
        """What is known of a module; an unknown module is the root of a model, which is learnt."""
        if module not in self._known:
            inner = Selection(module, "*").modules.get("", module)  # without wrappers
            label = type(inner).__name__
            self._labels[label] += 1
            if self._labels[label] > 1:
                label += f"_{self._labels[label]}"
            self._learn(module, label)
            self._known.setdefault(module, _Known(None, False))
        return self._known[module]

    @property
    def _stack(self) -> list[_Frame]:
        """The calls under way in this thread."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[_Frame] = self._threads.stack
        return stack

    def _began(self, module: nn.Module, args: tuple[object, ...]) -> None:
        known = self._lookup(module)
        if known.name is None:
            return
        stack = self._stack
        call = None
        if known.shown and (self._depth is None or len(stack) <= self._depth):
            call = Call(known.name, type(module).__name__, self._counts[known.name], len(stack))
            call.inputs = _inputs(args, {})
            self._counts[known.name] += 1
            self.calls.append(call)
        stack.append(_Frame(module, call, sys.exc_info()[1]))

    def _ended(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        stack = self._stack
        if all(frame.module is not module for frame in stack):
            return
        while (frame := stack.pop()).module is not module:  # interrupted calls that never ended
            pass
        error = sys.exc_info()[1]
        if error is not None and error is not frame.error:
            _add_note(error, frame)
        if frame.call is None:
            return
        if kwargs:
            frame.call.inputs = _inputs(args, kwargs)
        if error is not None and error is not frame.error:
            frame.call.error = error_text(error)
        else:
            frame.call.outputs = tuple(
                TracedTensor.of("output" + path, tensor, read=True)
                for path, tensor in leaves(output)
            )


class _Known(NamedTuple):
    """A module that may be called: its name, None for a mere wrapper; whether to show its calls."""

    name: str | None
    shown: bool


class _Frame(NamedTuple):
    """A call under way, and the exception that was being handled when it began."""

    module: nn.Module
    call: Call | None
    error: BaseException | None


class _TraceHook(Hook):
    __slots__ = ("_trace",)

    def __init__(self, trace: Trace) -> None:
        self._trace = trace


class _Before(_TraceHook):
    """Forward pre-hook, of a module or of all."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if detour() is None:
            with without_torch_function():
                self._trace._began(module, args)


class _After(_TraceHook):
    """Forward hook, of a module or of all, which also runs when the forward has raised."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        if detour() is None:
            # When the forward has raised, torch calls the global hooks without kwargs.
            kwargs, output = rest if len(rest) == 2 else ({}, *rest)
            with without_torch_function():
                self._trace._ended(module, args, kwargs, output)


for _hook in (_Before, _After):
    break_graphs(_hook.__call__, "hookstats.trace records the calls of modules")


class _ParameterHook(_TraceHook):
    """Tensor hook of one parameter."""

    __slots__ = ("_name",)
    __torch_unserializable__ = True  # a tensor is saved without the hook, and without a warning

    def __init__(self, trace: Trace, name: str) -> None:
        super().__init__(trace)
        self._name = name

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            with without_torch_function():
                self._trace.gradients.append(TracedTensor.of(self._name, gradient, read=True))


def trace(
    model: nn.Module | None = None,
    *args: Any,
    depth: int | None = None,
    include: Selector | None = None,
    exclude: Selector | None = None,
    backward: Callable[[Any], Tensor] | None = None,
    **kwargs: Any,
) -> Trace:
    """Record what runs, in order: each module's name, type, shapes, and its output's mean and std.

    Given arguments for the model, `trace` runs the model. Without arguments, it traces a `with`
    block: the calls of the model there, or of any model if none is given.

    The model stays in its mode, training or evaluation, and runs with or without gradients as the
    caller does; as ever, a forward in training mode updates running statistics. Statistics are
    those of the whole tensor, as the module returned it; taking them waits for the device.

    Args:
        model: the model to trace; None for all modules of the process, by torch's global hooks. A
            module that no other module calls is then the root of a model, and its type begins the
            names: "Net", "Net.conv1", and for a second one "Net_2.conv1".
        args: arguments for the model.
        depth: the most modules that may be under way at a call; other calls are left out. 0 shows
            the root, 1 also its children.
        include: the modules to show, and those whose parameters' gradients to show, in the terms of
            `watch`; by default all.
        exclude: the modules not to show, in the same terms.
        backward: a function from the model's output to a loss, a tensor. The gradients of the
            parameters are then traced, and their ``.grad`` stays as it was. In a block, `gradients`
            has those of every backward.
        kwargs: keyword arguments for the model; a block is the only way to pass arguments that
            have the name of one above.

    Forwards that a backward runs again, for a checkpoint, are left out. Functions that were
    compiled before may show none of their calls. Exceptions go to the caller, with a note
    (Python 3.11) that names the module that raised. In a block, the trace then has all calls up to
    there, and `Trace.stopped` is that module's call. Global hooks run before those of modules: they
    see outputs before an `edit` changes them.

    Example:
        >>> print(hs.trace(model, x))
        >>> with hs.trace(model, depth=1) as t:
        ...     loss(model(x), y).backward()
        >>> with hs.trace() as t:
        ...     evaluate()
        >>> t.calls, t.gradients, t.to_pandas()

    Raises:
        ValueError: model is no module, or compiled already; include and exclude leave nothing;
            depth is no integer; backward is given without arguments for the model, or is no
            function to a loss; arguments are given without a model.
    """
    if model is None and (args or kwargs):
        raise ValueError("model = None: expected a module for the arguments given")
    if backward is not None and not callable(backward):
        raise ValueError(
            f"backward = {backward!r}: expected a function from the model's output to the loss"
        )
    if model is not None:
        check_model(model)
        make_reachable(dict(model.named_modules()))
    depth = check_optional_integer("depth", depth, 0)
    result = Trace(model, depth, include, exclude)
    if model is None or not (args or kwargs):
        if backward is not None:
            raise ValueError(
                "backward: expected arguments for the model with it; in a `with` block, call "
                "backward there"
            )
        return result
    with result:
        output = model(*args, **kwargs)
        if backward is not None:
            loss = backward(output)
            if not isinstance(loss, Tensor):
                raise ValueError(
                    f"backward returned {shown(loss)}: expected the loss, a tensor; trace runs its "
                    "backward"
                )
            parameters = [p for p in model.parameters() if p.requires_grad]
            if parameters:
                torch.autograd.grad(loss, parameters, allow_unused=True)
    return result


def _inputs(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[TracedTensor, ...]:
    return tuple(
        TracedTensor.of("input" + path, tensor, read=False)
        for path, tensor in argument_leaves(args, kwargs)
    )


def _add_note(error: BaseException, frame: _Frame) -> None:
    """Note once in which call an exception was raised: the innermost call ends first."""
    if sys.version_info < (3, 11) or frame.call is None:
        return
    start = "hookstats.trace: raised in "
    if any(note.startswith(start) for note in getattr(error, "__notes__", ())):
        return
    call = frame.call
    given = ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in call.inputs)
    error.add_note(f"{start}{call.name or label('')!r} ({call.type}), given {given or 'no tensor'}")
