"""edit(): changes a tensor in flight, in a forward or a backward; Edit: the handle of that."""

from __future__ import annotations

import difflib
from types import TracebackType
from typing import overload

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookstats.hooks.attach import check_model, make_reachable
from hookstats.records.keys import Kind, parse_kind
from hookstats.tensors.edit_hooks import GradientOfOutputEdit, InputEdit, OutputEdit, edit_gradient
from hookstats.tensors.editor import EditFunction, Editor

KINDS = ("output", "input", "grad_output")
"""What of a module can be edited."""


class Edit:
    """An edit that is in force; `edit` makes it. As a context manager, removed at the end."""

    def __init__(self, editor: Editor, handle: RemovableHandle) -> None:
        self._editor = editor
        self._handle = handle

    @property
    def calls(self) -> int:
        """How many tensors the function was given so far."""
        return self._editor.calls

    def remove(self) -> None:
        """End the edit, at once: gradients of earlier forwards are not edited either.

        Again does nothing.
        """
        self._editor.active = False
        self._handle.remove()

    def __enter__(self) -> Edit:
        if not self._editor.active:
            raise ValueError("the edit is removed: expected one in force, from another edit()")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "" if self._editor.active else ", removed"
        return f"Edit({self._editor.place}, calls={self.calls}{state})"


@overload
def edit(target: nn.Module, fn: EditFunction, kind: str = "output") -> Edit: ...
@overload
def edit(target: Tensor, fn: EditFunction) -> Edit: ...
def edit(target: nn.Module | Tensor, fn: EditFunction, kind: str | None = None) -> Edit:
    """Change a tensor in flight: what a module returns or is given, or a gradient.

    `fn` gets the tensor and returns the one to go on with, of equal shape, dtype and device, or
    None to leave it as it is, which merely looks. It never changes its tensor in place, and an
    exception that it raises goes to the caller of the forward or backward.

    Several edits of one tensor run in the order in which they were set, each on what the one before
    it made. The hooks of `watch` and the user's own take their places in that order: a watch that
    was set before an edit sees the tensor before it, one set after sees it edited.

    Args:
        target: a module; or a tensor or parameter, whose gradient is edited whenever a backward
            brings it, before it is added to ``.grad``, and before the gradients of what the tensor
            was computed from. Those of DistributedDataParallel are this rank's then, those under a
            GradScaler scaled.
        fn: Tensor -> Tensor or None.
        kind: of a module's calls, "output" (the default), "input" (positional and keyword
            arguments) or "grad_output", the gradient of what it returned: its total one, over all
            that use the output. Plain, that is every floating-point tensor in there, each once;
            with a path as `watch` names them, that one: "output[1]", "output.logits", "input[0]",
            "input.attention_mask". Containers are copied with their type, never changed.

    Forward edits are differentiated through, as any operation between two modules would be, and run
    again where a checkpoint recomputes. Edits of gradients run in each backward that brings one,
    with a graph of their own under `create_graph`; where no gradient comes (under `no_grad`, or of
    frozen modules), they do nothing. Of a view that was changed in place later, autograd has no
    gradient: it is taken out of that of its base, unless others may have a share in that, which is
    an EditError. In copies and pickles of a model, edits do nothing.

    What cannot be noticed: changes in place through `.data` or numpy, and of tensors made under
    `inference_mode`. Compiled code ends its graph at an edit, which has to be set before.

    Example:
        >>> hs.edit(model.head, lambda t: t.clamp(-10, 10))
        >>> with hs.edit(model.layer1, print, "grad_output"):
        ...     loss(model(x), y).backward()
        >>> handle = hs.edit(model.head.weight, lambda g: g * 2)
        >>> handle.remove()

    Returns:
        The handle, to remove the edit; else it stays for as long as the target.
    Raises:
        ValueError: target, fn or kind is something else; the tensor requires no gradient; the
            module is compiled already, or a ScriptModule.
        EditError: a ValueError at the forward or backward in which `fn` changed its tensor in place
            or returned something that does not fit, or there is no such tensor.
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
    name, path = _parse(kind)
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError("target: a ScriptModule takes no hooks; expected an nn.Module")
    check_model(module)
    editor = Editor(fn, f"{type(module).__name__}({module.extra_repr()})")
    make_reachable({editor.place: module})
    if name == "input":
        before = InputEdit(editor, name, path)
        return Edit(editor, module.register_forward_pre_hook(before, with_kwargs=True))
    if name == "output":
        return Edit(editor, module.register_forward_hook(OutputEdit(editor, name, path)))
    after = GradientOfOutputEdit(editor, name, path)
    return Edit(editor, module.register_forward_hook(after, with_kwargs=True))


def _parse(kind: str) -> Kind:
    """The parts of a kind that can be edited; a ValueError for any other."""
    found = parse_kind(kind) if isinstance(kind, str) else None
    if found is None or found.plain not in KINDS:
        close = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        if kind == "grad_input":
            hint = "; for the gradient of an input, edit(tensor, fn)"
        raise ValueError(
            f"kind = {kind!r}: expected one of {', '.join(KINDS)}, with a path or without{hint}"
        )
    return found
