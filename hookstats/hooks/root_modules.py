"""RootModules: the watched models: whether one was called in a step, whether they evaluate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookstats._torch import current_graph_task_id, runs_checkpoint
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.inert import KINDS, Hook
from hookstats.hooks.traced import hookstats_leaves_out

_NO_PHASE = -1
"""The phase of a call that is left out: no hook has it."""
_WITH_GRADIENTS = frozenset({(True, True), (True, False)})
"""Of the modes of calls, (gradients, training)."""


class RootModules:
    """The models of a watch, which are not kept alive."""

    __slots__ = ("_buffers", "_calls", "_models", "evaluations", "note_call", "skips_evaluation")

    def __init__(self, models: Iterable[nn.Module], buffers: DoubleBuffer) -> None:
        self._models = [weakref.ref(model) for model in models]
        self._buffers = buffers
        self._calls = [_CallHook(self) for _ in self._models]
        self.note_call: Callable[[], object] = lambda: None
        """Called when a call that makes `called` true begins, unless compiled code makes it."""
        self.skips_evaluation = False
        """Whether the calls of an evaluation are left out, and do not make `called` true."""
        self.evaluations = 0
        """The calls of models that were left out though gradients are on, or the model is in
        training mode; see `_CallHook`."""

    @property
    def called(self) -> bool:
        """Whether a call of a model has begun in the open step."""
        for call in self._calls:  # noqa: SIM110 - each step asks, `any` takes longer
            if call.called:
                return True
        return False

    def begin_step(self) -> None:
        """Begin a step, in which no model is called yet."""
        self.end_call()
        for call in self._calls:
            call.begin_step()

    def attach(self) -> list[RemovableHandle]:
        """Register the hooks that tell of calls; a ScriptModule takes none. `attach_ends` is to
        follow, after all others."""
        return [model.register_forward_pre_hook(call) for model, call in self._with_hooks()]

    def attach_ends(self) -> list[RemovableHandle]:
        """Register the hooks that tell of the ends of calls."""
        return [model.register_forward_hook(_EndHook(self)) for model, _ in self._with_hooks()]

    def _with_hooks(self) -> Iterator[tuple[nn.Module, _CallHook]]:
        for known, call in zip(self._models, self._calls, strict=True):
            model = known()
            if model is not None and not isinstance(model, torch.jit.ScriptModule):
                yield model, call

    def alive(self) -> list[nn.Module | None]:
        """The models, and None for each that is gone."""
        return [known() for known in self._models]

    def leave_call_out(self) -> None:
        """Have the hooks of training leave out the call that begins now."""
        if self._buffers.phase == 0:
            self._buffers.enter(_NO_PHASE)
            self.evaluations += 1

    def end_call(self) -> None:
        """Have the hooks of training observe again, if a call was left out."""
        if self._buffers.phase == _NO_PHASE:
            self._buffers.enter(0)

    def of(self, optimizer: Optimizer) -> frozenset[int]:
        """The places of the models that have a parameter of the optimizer."""
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        models = [known() for known in self._models]
        return frozenset(
            place
            for place, model in enumerate(models)
            if model is not None and any(id(p) in ids for p in model.parameters())
        )

    def were_called(self, places: Iterable[int]) -> bool:
        """Whether one of these models was called since `forget_calls`."""
        return any(self._calls[place].seen for place in places)

    def forget_calls(self) -> None:
        """Have `were_called` tell of later calls alone."""
        for call in self._calls:
            call.seen = False

    def remove_handed_on(self, buffers: DoubleBuffer) -> None:
        """Remove the hooks that feed `buffers` from modules that took the places of others, as
        torch's conversions for quantization hand hooks on."""
        for model in filter(None, [known() for known in self._models]):
            for module in model.modules():
                for hooks in (module._forward_hooks, module._forward_pre_hooks):
                    for key, hook in list(hooks.items()):
                        python = getattr(hook, "python", hook)  # of a C++ hook
                        is_ours = issubclass(type(hook), tuple(KINDS))
                        if is_ours and getattr(python, "buffers", None) is buffers:
                            del hooks[key]

    def is_evaluation(self) -> bool:
        """Whether a call now is one of an evaluation: gradients are off, and every model is in
        eval mode. Training has either on: fine-tuning in eval mode needs gradients, and where a
        part is frozen the model is in training mode."""
        if torch.is_grad_enabled():
            return False
        return not any(model.training for model in filter(None, [m() for m in self._models]))


class _CallHook(Hook):
    """Forward pre-hook of a model. Dynamo traces its assignments, and repeats them at each call."""

    __slots__ = ("_left_out", "_modes", "_roots", "_training", "called", "seen")

    def __init__(self, roots: RootModules) -> None:
        self._roots = roots
        self.called = self.seen = False
        # Modes, (gradients, training), of the open step's calls: counted ones, left-out ones.
        self._modes: set[tuple[bool, bool]] = set()
        self._left_out: set[tuple[bool, bool]] = set()
        self._training: set[tuple[bool, bool]] = set()
        """The modes in which training calls the model, as the last step showed that had calls."""

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        roots = self._roots
        if is_dynamo_compiling():
            if hookstats_leaves_out():
                return
            is_compiled = True
        else:
            is_compiled = False
            if roots.skips_evaluation:
                if roots._buffers.phase == _NO_PHASE:
                    roots.end_call()  # of one that an error ended
                if self._is_evaluation(module):
                    self.seen = True
                    roots.leave_call_out()
                    return
        self.seen = True
        if not roots.skips_evaluation or torch.is_grad_enabled() or module.training:
            self.called = True
            if not is_compiled:
                roots.note_call()

    def _is_evaluation(self, module: nn.Module) -> bool:
        """Whether the call is one of an evaluation that modes alone do not tell.

        These are calls without gradients, in training mode, of a model that is to learn, and calls
        with gradients, in eval mode, of a model that steps found in training mode. The first step
        that is all of such calls shows that they are the training.
        """
        if current_graph_task_id() != -1:
            return False  # a recomputation
        mode = torch.is_grad_enabled() or runs_checkpoint(), module.training
        if mode == (False, True):
            doubtful = any(p.requires_grad for p in module.parameters())
        else:
            doubtful = mode == (True, False) and (True, True) in self._training
        left_out = doubtful and mode not in self._training
        (self._left_out if left_out else self._modes).add(mode)
        return left_out

    def begin_step(self) -> None:
        """Note in which modes the training called the model in the step that ends."""
        self.called = False
        self._training = (self._modes & _WITH_GRADIENTS) or self._left_out or self._training
        self._modes, self._left_out = set(), set()


class _EndHook(Hook):
    __slots__ = ("_roots",)

    def __init__(self, roots: RootModules) -> None:
        self._roots = roots

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if not is_dynamo_compiling():
            self._roots.end_call()


run_untraced(_CallHook.__call__)
run_untraced(_EndHook.__call__)
