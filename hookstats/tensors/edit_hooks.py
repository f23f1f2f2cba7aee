"""The hooks of edits: callables on modules and tensors that replace tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.gradients import View, awaited_base
from hookstats.hooks.inert import Hook
from hookstats.hooks.leaves import Leaf, argument_leaves, leaves
from hookstats.tensors.editor import Editor
from hookstats.tensors.replace import with_leaves


class _ModuleHook(Hook):
    """Edits the tensors of one kind in a module's calls: the one at `path`, or all floating-point
    tensors."""

    __slots__ = ("_kind", "_path", "editor")

    def __init__(self, editor: Editor, kind: str, path: str | None) -> None:
        self.editor = editor
        self._kind = kind
        self._path = path

    def _edited(self, found: Iterable[Leaf]) -> list[Tensor]:
        """The leaves, with the chosen ones edited; a tensor that occurs twice is edited once."""
        everything = list(found)
        edited = {
            id(tensor): self.editor.apply(tensor, self._kind + path)
            for path, tensor in self._chosen(everything)
        }
        if self._path is None:
            return [edited.get(id(tensor), tensor) for _, tensor in everything]
        return [edited[id(t)] if path == self._path else t for path, t in everything]

    def _chosen(self, found: list[Leaf]) -> list[Leaf]:
        """The leaves to edit, each tensor once."""
        if self._path is None:
            chosen = [leaf for leaf in found if _is_floating(leaf[1])]
        else:
            chosen = [leaf for leaf in found if leaf[0] == self._path]
        if not chosen:
            there = [f"{self._kind}{path} ({tensor.dtype})" for path, tensor in found]
            wanted = "floating-point tensor" if self._path is None else "tensor"
            raise self.editor.error(
                self._kind + (self._path or ""),
                f"no such {wanted}; expected one of: {', '.join(there) or 'nothing, as none came'}",
            )
        once: dict[int, Leaf] = {}
        for leaf in chosen:
            once.setdefault(id(leaf[1]), leaf)
        return list(once.values())

    def _put(self, value: Any, tensors: Iterable[Tensor]) -> Any:
        """`value` with `tensors` for its leaves."""
        try:
            return with_leaves(value, tensors)
        except TypeError as error:
            raise self.editor.fault(
                self._kind,
                f"edited a tensor in a container that cannot be copied with it ({error}); expected "
                "tuples, lists, mappings that can be written to, dataclasses",
            ) from error


class OutputEdit(_ModuleHook):
    """Forward hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: Any) -> Any:
        if not self.editor.active:  # another hook removed this one in the same call
            return None
        return self._put(output, self._edited(leaves(output)))


class InputEdit(_ModuleHook):
    """Forward pre-hook, with keyword arguments."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> Any:
        if not (self.editor.active and rest):  # see `Hook`
            return None
        (kwargs,) = rest
        return self._put((args, kwargs), self._edited(argument_leaves(args, kwargs)))


class GradientOfOutputEdit(_ModuleHook):
    """Forward hook, with keyword arguments: has the gradients of this call's outputs edited."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        if not (self.editor.active and len(rest) == 2):  # see `Hook`
            return
        kwargs, output = rest
        found = list(leaves(output))
        users = [_memory(tensor) for _, tensor in argument_leaves(args, kwargs)]
        users += {id(tensor): _memory(tensor) for _, tensor in found}.values()
        for path, tensor in self._chosen(found):
            if not tensor.requires_grad:
                continue
            kind = self._kind + path
            if tensor.grad_fn is None:
                raise self.editor.fault(
                    kind,
                    "would be called for a leaf of the graph, which outlives the call; expected an "
                    "edit of the tensor itself: edit(tensor, fn)",
                )
            memory = _memory(tensor)
            alone = sum(other is memory for other in users) == 1
            edit_gradient(self.editor, kind, tensor, alone)


for _hook in (OutputEdit, InputEdit, GradientOfOutputEdit):
    break_graphs(_hook.__call__, "hookstats.edit calls a function between two modules")


class _GradientEdit(Hook):
    """Tensor hook."""

    __slots__ = ("_editor", "_kind", "_view")
    __torch_unserializable__ = True  # a tensor is saved without the hook, and without a warning

    def __init__(self, editor: Editor, kind: str, view: View | None) -> None:
        """view: if the tensor is one; once it is replaced, the base's gradient is edited."""
        self._editor = editor
        self._kind = kind
        self._view = view

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None or not self._editor.active:  # None: an undefined gradient
            return None
        if self._view is not None and self._view.is_replaced():
            return None
        edited = self._editor.apply(gradient, self._kind)
        return None if edited is gradient else edited


class _BaseGradientEdit(Hook):
    """Tensor hook for the base of a view: edits the gradient of a replaced view in the base's.

    The base's gradient has the view's gradient at the view's place, summed over all uses of the
    base; if there may be other uses, an edit would change their gradients, too.
    """

    __slots__ = ("_alone", "_editor", "_kind", "_view")
    __torch_unserializable__ = True

    def __init__(self, editor: Editor, kind: str, view: View, alone: bool) -> None:
        self._editor = editor
        self._kind = kind
        self._view = view
        self._alone = alone

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None or not self._editor.active or not self._view.is_replaced():
            return None
        if not self._alone:
            raise self._editor.fault(
                self._kind,
                "cannot have the gradient of a view that was changed in place later, since other "
                "tensors may use the view's memory; expected an operation out of place (relu for "
                "relu_, inplace=False), or a view that is cloned first",
            )
        part = self._view.part_of(gradient)
        edited = self._editor.apply(part, self._kind)
        if edited is part:
            return None
        whole = self._view.like_base(gradient)
        self._view.part_of(whole).copy_(edited)
        return whole


def edit_gradient(editor: Editor, kind: str, tensor: Tensor, alone: bool) -> Any:
    """Have the gradient of `tensor` edited; returns the handle of its hook.

    alone: whether no other tensor uses the memory of `tensor`.
    """
    if tensor.grad_fn is None:
        return tensor.register_hook(_GradientEdit(editor, kind, None))  # type: ignore[no-untyped-call]
    # Hooks that were set before this one, in C++ as well, must run before it: autograd runs the
    # Python hooks where the first of them was set, unless the tensor gets a new list of them.
    tensor._backward_hooks = None
    base = awaited_base(tensor)
    view = None if base is None else View(tensor, base)
    if base is not None and view is not None:
        base._backward_hooks = None
        base.register_hook(_BaseGradientEdit(editor, kind, view, alone))  # type: ignore[no-untyped-call]
    return tensor.register_hook(_GradientEdit(editor, kind, view))  # type: ignore[no-untyped-call]


def _memory(tensor: Tensor) -> Tensor:
    """The base of `tensor`, or `tensor` itself if it is no view."""
    return tensor if tensor._base is None else tensor._base


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
