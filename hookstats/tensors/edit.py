"""edit(): changes a tensor in flight, in a forward or a backward; Edit: the handle of an edit."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookstats.hooks.attach import check_model, make_reachable
from hookstats.hooks.inert import marked
from hookstats.records.keys import Kind, did_you_mean, parse_kind
from hookstats.tensors.edit_hooks import GradientOfOutputEdit, InputEdit, OutputEdit, edit_gradient
from hookstats.tensors.editor import EditFunction, Editor

KINDS = ("output", "input", "grad_output")
"""The kinds of a module's tensors that can be edited."""


class Edit:
    """An edit in force; `edit` makes it. A context manager removes it at the end."""

    def __init__(self, editor: Editor, handle: RemovableHandle) -> None:
        self._editor = editor
        self._handle = handle

    @property
    def calls(self) -> int:
        """The number of tensors that the function was given so far."""
        return self._editor.calls

    def remove(self) -> None:
        """End the edit at once, also for gradients of earlier forwards; once ended, do nothing."""
        self._editor.active = False
        self._handle.remove()

    def __enter__(self) -> Edit:
        if not self._editor.active:
            raise ValueError("the edit is removed: expected one in force, from another edit()")
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "" if self._editor.active else ", removed"
        return f"Edit({self._editor.place}, calls={self.calls}{state})"


@overload
def edit(target: nn.Module, fn: EditFunction, kind: str = "output") -> Edit: ...
@overload
def edit(target: Tensor, fn: EditFunction) -> Edit: ...
def edit(target: nn.Module | Tensor, fn: EditFunction, kind: str | None = None) -> Edit:
    """Change a tensor in flight: a module's output or input, or a gradient.

    `fn` gets the tensor and returns its replacement, of equal shape, dtype and device, or None to
    keep the tensor, as a function that merely looks does. `fn` must not change its tensor in place;
    exceptions that it raises go to the caller of the forward or backward.

    Several edits of one tensor run in the order in which they were set, each on the result of the
    one before. The hooks of `watch` and the user's own hooks take their places in that order: a
    watch that was set before an edit sees the tensor unedited, one that was set after sees it
    edited.

    Args:
        target: a module; or a tensor or parameter, whose gradient is edited whenever a backward
            brings it, before it is added to ``.grad``, and before the backward goes on from the
            tensor. Under DistributedDataParallel this is the gradient of this rank, under a
            GradScaler it is scaled.
        fn: Tensor -> Tensor or None.
        kind: for a module, "output" (the default), "input" (positional and keyword arguments) or
            "grad_output", the gradient of the output: its total over all uses of the output.
            Without a path, every floating-point tensor is edited, each once; with a path as `watch`
            names it, that tensor: "output[1]", "output.logits", "input[0]", "input.attention_mask".
            Containers are copied with their type, never changed.

    Autograd differentiates through forward edits, as through any operation between two modules, and
    a checkpoint that recomputes runs them again. Edits of gradients run in each backward that
    brings one, with a graph under `create_graph`; without a gradient (under `no_grad`, or of frozen
    modules), they do nothing. For a view that was changed in place later, autograd has no gradient:
    it is taken out of the gradient of the base, unless other tensors may have a part in that, which
    is an EditError. In copies and pickles of a model, edits do nothing.

    Changes in place go unnoticed if they are made through `.data` or numpy, or to tensors of
    `inference_mode`. Compiled code ends its graph at an edit, which has to be set before.

    Example:
        >>> hs.edit(model.head, lambda t: t.clamp(-10, 10))
        >>> with hs.edit(model.layer1, print, "grad_output"):
        ...     loss(model(x), y).backward()
        >>> handle = hs.edit(model.head.weight, lambda g: g * 2)
        >>> handle.remove()

    Returns:
        The handle, which removes the edit. An edit that is not removed lasts as long as the target.
    Raises:
        ValueError: target, fn or kind is of another type; the tensor requires no gradient; the
            module is compiled already, or a ScriptModule.
        EditError: a ValueError, at the forward or backward in which `fn` changed its tensor in
            place or returned something that does not fit, or in which there is no such tensor.
    """
    if not callable(fn):
        raise ValueError(f"fn = {fn!r}: expected a callable (Tensor) -> Tensor or None")
    if isinstance(target, Tensor):
        return _edit_tensor(target, fn, kind)
    if isinstance(target, nn.Module):
        return _edit_module(target, fn, "output" if kind is None else kind)
    raise ValueError(f"target = {target!r}: expected a torch.nn.Module or a torch.Tensor")


def _edit_tensor(tensor: Tensor, fn: EditFunction, kind: str | None) -> Edit:
    if kind is not None:
        raise ValueError(f"kind = {kind!r}: expected none for a tensor, whose gradient is edited")
    if not tensor.requires_grad:
        raise ValueError(
            f"target: a tensor of shape {tuple(tensor.shape)} that requires no gradient; expected "
            "one that has a gradient to edit"
        )
    name = "parameter" if isinstance(tensor, nn.Parameter) else "tensor"
    editor = Editor(fn, f"a {name} of shape {tuple(tensor.shape)}")
    return Edit(editor, edit_gradient(editor, "gradient", tensor, alone=False))


def _edit_module(module: nn.Module, fn: EditFunction, kind: str) -> Edit:
    name, path, _ = _parse(kind)
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError("target: a ScriptModule takes no hooks; expected an nn.Module")
    check_model(module)
    editor = Editor(fn, f"{type(module).__name__}({module.extra_repr()})")
    make_reachable({editor.place: module})
    if name == "input":
        before = InputEdit(editor, name, path)
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
        return Edit(editor, marked(handle))
    if name == "output":
        return Edit(editor, module.register_forward_hook(OutputEdit(editor, name, path)))
    after = GradientOfOutputEdit(editor, name, path)
    return Edit(editor, marked(module.register_forward_hook(after, with_kwargs=True)))


def _parse(kind: str) -> Kind:
    """The parts of a kind that can be edited; a ValueError for any other kind."""
    found = parse_kind(kind) if isinstance(kind, str) else None
    if found is None or found.plain not in KINDS or found.phase is not None:
        hint = did_you_mean(str(kind), KINDS, most=1)
        if kind == "grad_input":
            hint = "; for the gradient of an input, edit(tensor, fn)"
        raise ValueError(
            f"kind = {kind!r}: expected one of {', '.join(KINDS)}, with a path or without{hint}"
        )
    return found
