"""What ran, in order: calls, numbers, gradients, exceptions, what is left out; and as tables."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from support.traced import NAMES, SCALE, Block, X, names
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.tensors.trace import trace


def test_calls_in_the_order_of_their_beginnings(block: Block) -> None:
    result = trace(block, X, scale=SCALE)
    assert names(result) == NAMES
    assert [call.type for call in result.calls] == [
        type(block.get_submodule(name)).__name__ for name in NAMES
    ]
    assert [call.depth for call in result.calls] == [0, 1, 1, 1, 2, 2, 1]
    assert [call.index for call in result.calls] == [0] * 6 + [1]
    root, first = result.calls[:2]
    assert root.outputs is not None
    assert [(t.name, t.shape, t.dtype) for t in root.inputs] == [
        ("input", (5, 3), "float32"),
        ("input.scale", (4,), "float32"),
    ]
    assert [(t.name, t.shape, t.dtype) for t in root.outputs] == [
        ("output", (5, 4), "float32"),
        ("output[1]", (2,), "int64"),
    ]
    assert [t.shape for t in first.inputs] == [(5, 3)]
    assert first.output is not None
    assert (first.output.shape, root.outputs[1].mean) == ((5, 4), None)


def test_means_are_those_of_the_outputs_as_they_were(block: Block) -> None:
    expected: list[tuple[float, float]] = []

    def note(module: nn.Module, args: object, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        x = tensor.detach().double()
        expected.append((x.mean().item(), x.std(correction=0).item()))

    for module in (block.first, block.act, block.second[0]):
        module.register_forward_hook(note)
    result = trace(block, X, scale=SCALE)
    found = [call for call in result.calls if call.name in ("first", "act", "second.0")]
    assert [call.mean for call in found] == pytest.approx([mean for mean, _ in expected])
    assert [call.std for call in found] == pytest.approx([std for _, std in expected])
    overwritten = result.calls[3]  # second's output, which act changes in place
    assert overwritten.mean != pytest.approx(found[-1].mean)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_modes_and_the_model_are_left_as_they_are(block: Block, training: bool, grad: bool) -> None:
    block.train(training)
    before = copy.deepcopy(block.state_dict())
    random = torch.get_rng_state()
    with torch.set_grad_enabled(grad):
        expected = block(X, scale=SCALE)
        torch.set_rng_state(random)
        with trace(block) as result:
            output = block(X, scale=SCALE)
        assert torch.is_grad_enabled() == grad
    assert torch.equal(output[0], expected[0])
    assert output[0].requires_grad == grad
    assert all(module.training == training for module in block.modules())
    assert all(torch.equal(block.state_dict()[key], value) for key, value in before.items())
    assert names(result) == NAMES
    block(X, scale=SCALE)
    assert len(result.calls) == len(NAMES)  # the hooks are gone
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in block.modules())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"depth": 0}, [""]),
        ({"depth": 1}, ["", "first", "act", "second", "act"]),
        ({"include": ["first", "second.*"]}, ["first", "second.0", "second.1"]),
        ({"include": nn.Linear}, ["first", "second.0"]),
        ({"exclude": ["act", ""]}, ["first", "second", "second.0", "second.1"]),
        ({"depth": 1, "include": "second*"}, ["second"]),
    ],
)
def test_what_is_shown(block: Block, options: dict[str, Any], expected: list[str]) -> None:
    assert names(trace(block, X, scale=SCALE, **options)) == expected


def test_depth_counts_what_is_not_shown(block: Block) -> None:
    assert [call.depth for call in trace(block, X, scale=SCALE, include="second.0").calls] == [2]


def test_the_gradients_of_parameters(block: Block) -> None:
    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        return output[0].square().sum()

    result = trace(block, X, scale=SCALE, backward=loss)
    assert all(parameter.grad is None for parameter in block.parameters())
    loss(block(X, scale=SCALE)).backward()
    assert {g.name for g in result.gradients} == {
        "first.weight", "first.bias", "second.0.weight", "second.0.bias",
    }  # fmt: skip
    assert result.gradients[-1].name.startswith("first.")  # as the backward brings them
    for gradient in result.gradients:
        grad = block.get_parameter(gradient.name).grad
        assert grad is not None
        assert gradient.shape == tuple(grad.shape)
        assert gradient.mean == pytest.approx(grad.double().mean().item())
        assert gradient.std == pytest.approx(grad.double().std(correction=0).item())


def test_the_backwards_of_a_block(block: Block) -> None:
    block.first.requires_grad_(False)
    with trace(block, include="second.0") as result:
        for _ in range(2):
            block(X, scale=SCALE)[0].sum().backward()
    assert [g.name for g in result.gradients] in (
        ["second.0.weight", "second.0.bias"] * 2,
        ["second.0.bias", "second.0.weight"] * 2,
    )
    assert block.second[0].weight.grad is not None
    block(X, scale=SCALE)[0].sum().backward()
    assert len(result.gradients) == 4


# All modules.


def test_modules_without_a_model_at_hand(block: Block) -> None:
    other = Block().eval()
    with trace() as result:
        block(X, scale=SCALE)
        nn.Linear(3, 2)(X)
        other.first(X)
        other(X, scale=SCALE)
        block.act(X.clone())
    root = [f"Block.{name}" if name else "Block" for name in NAMES]
    second = [f"Block_2.{name}" if name else "Block_2" for name in NAMES]
    second[1] = "Linear_2"  # that was called before its model was
    assert names(result) == [*root, "Linear", "Linear_2", *second, "Block.act"]
    assert [call.index for call in result.calls if call.name == "Linear_2"] == [0, 1]
    assert result.calls[0].inputs[1].name == "input.scale"
    assert not torch.nn.modules.module._has_any_global_hook()


def test_gradients_without_a_model_at_hand(block: Block) -> None:
    with trace(include="second*") as result:
        block(X, scale=SCALE)[0].sum().backward()
    assert names(result) == ["Block.second", "Block.second.0", "Block.second.1"]
    assert {g.name for g in result.gradients} == {"Block.second.0.weight", "Block.second.0.bias"}


def test_wrappers_are_left_out() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    assert names(trace(model, torch.ones(1, 2))) == ["", "0"]
    with trace() as result:
        model(torch.ones(1, 2))
    assert names(result) == ["Sequential", "Sequential.0"]
    assert [call.depth for call in result.calls] == [0, 1]


# Exceptions.


class Caught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bad = nn.Sequential(nn.Linear(7, 7))
        self.good = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        try:
            return self.bad(x)
        except RuntimeError:
            return self.good(x)


@pytest.mark.parametrize("at_hand", [True, False])
def test_where_a_forward_stopped(block: Block, at_hand: bool) -> None:
    block.second[0] = nn.Linear(5, 5)
    prefix = "" if at_hand else "Block."
    with (
        pytest.raises(RuntimeError, match="mat1 and mat2") as caught,
        trace(block if at_hand else None) as result,
    ):
        block(X, scale=SCALE)
    name = f"{prefix}second.0"
    assert result.stopped is not None
    assert (result.stopped.name, result.stopped.outputs) == (name, None)
    assert str(result.stopped.error) == f"RuntimeError: {caught.value}"
    assert [call.outputs is None for call in result.calls] == [True, False, False, True, True]
    assert "raised" in str(result)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [
            f"hookstats.trace: raised in '{name}' (Linear), given float32 (5, 4)"
        ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_the_exception_of_one_call_says_where(block: Block) -> None:
    with pytest.raises(RuntimeError) as caught:
        trace(block, torch.ones(2, 9), scale=SCALE)
    assert "raised in 'first'" in caught.value.__notes__[0]  # type: ignore[attr-defined]
    assert not any(m._forward_hooks for m in block.modules())


@pytest.mark.parametrize("at_hand", [True, False])
def test_an_exception_that_the_model_catches(at_hand: bool) -> None:
    model = Caught()
    with trace(model if at_hand else None) as result:
        model(X)
        try:
            raise ValueError("of the caller")
        except ValueError:
            model(X)  # in the handling of an exception of someone else's
    assert [call.name.split(".")[-1].replace("Caught", "") for call in result.calls] == (
        ["", "bad", "0", "good"] * 2
    )
    assert [call.depth for call in result.calls] == [0, 1, 2, 1] * 2
    assert [call.outputs is None for call in result.calls] == [False, True, True, False] * 2


def test_a_forward_that_is_interrupted() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Identity(), Interrupted())
    with trace() as result:
        with pytest.raises(KeyboardInterrupt):
            model(X)
        model[0](X)
    assert result.stopped is not None
    assert (result.stopped.name, result.stopped.error) == ("Sequential.1", None)
    assert "stopped" in str(result)


# What else happens to models.


def test_recomputations_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = X.clone().requires_grad_()
    for reentrant in (False, True):
        with trace(model) as result:
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        assert names(result) == ["", "0", "1"]
        assert all(call.outputs is not None for call in result.calls)


def test_what_cannot_be_read_has_a_shape_alone() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return torch.ones(2, device="meta"), x.to_sparse(), x.to(torch.complex64), x[0] / 0

    (call,) = trace(Odd(), X).calls
    assert call.outputs is not None
    assert [t.shape for t in call.outputs] == [(2,), (5, 3), (5, 3), (3,)]
    assert [t.nonfinite for t in call.outputs] == [None, None, None, 3]
    assert call.output == call.outputs[3]
    inside = torch.vmap(lambda x: (trace(nn.ReLU(), x).calls[0].mean, x)[1])
    assert torch.equal(inside(X), X)


def test_jit_traces_hold_nothing_of_it(block: Block) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with trace(model) as result:
        graph = torch.jit.trace(model, (X,), check_trace=False)
    assert names(result) == []
    assert "hookstats" not in str(graph.inlined_graph)


def test_a_copy_made_in_the_block_records_nothing(block: Block) -> None:
    with trace(block) as result:
        copy.deepcopy(block)(X, scale=SCALE)
    assert names(result) == []


def test_a_frozen_model_has_no_gradients(block: Block) -> None:
    block.requires_grad_(False)
    result = trace(block, X, scale=SCALE, backward=lambda output: output[0].sum())
    assert names(result) == NAMES
    assert result.gradients == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((len,), {}, "model = <built-in function len>"),
        ((nn.ReLU(), X), {"include": "conv*"}, "include = 'conv.*nothing is left to trace"),
        ((nn.ReLU(), X), {"depth": -1}, "depth = -1"),
        ((nn.ReLU(),), {"backward": torch.sum}, "backward: expected arguments"),
        ((), {"backward": torch.sum}, "backward: expected arguments"),
        ((nn.ReLU(), X), {"backward": True}, "^backward = True: expected a function"),
        (
            (nn.Linear(3, 2), X),
            {"backward": lambda y: y.sum().backward()},
            "^backward returned None: expected the loss, a tensor; trace runs its backward",
        ),
        ((None, X), {}, "^model = None: expected a module for the arguments given"),
        ((), {"include": 3}, "^include = 3: expected a glob"),
        ((), {"exclude": ["a", 3]}, "^exclude = 3: expected a glob"),
        ((Caught(), X), {"include": ["good", "bda"]}, "^include has 'bda': .* such as 'bad'"),
    ],
)
def test_bad_arguments(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace(*arguments, **options)


def test_a_trace_records_once_at_a_time(block: Block) -> None:
    with trace(block) as result:
        with pytest.raises(RuntimeError, match="recording already"), result:
            pass
        block(X, scale=SCALE)
    with result:
        block(X, scale=SCALE)
    assert names(result) == NAMES * 2
    assert [call.index for call in result.calls if call.name == "act"] == [0, 1, 2, 3]


def test_as_data(block: Block) -> None:
    result = trace(block, X, scale=SCALE)
    rows = result.to_dicts()
    assert [row["name"] for row in rows] == NAMES
    assert rows[1]["outputs"][0]["shape"] == (5, 4)
    assert rows[1]["mean"] == result.calls[1].mean


@pytest.mark.check
def test_as_data_frames(block: Block) -> None:
    result = trace(block, X, scale=SCALE, backward=lambda output: output[0].sum())
    frame = result.to_pandas()
    assert list(frame.columns) == [
        "name", "type", "index", "depth", "input", "output", "dtype", "mean", "std", "nonfinite",
        "error",
    ]  # fmt: skip
    assert list(frame["name"]) == NAMES
    assert list(frame["index"]) == [0] * 6 + [1]
    assert frame["input"].tolist()[:2] == [((5, 3), (4,)), ((5, 3),)]
    assert frame["output"].tolist()[:2] == [((5, 4), (2,)), ((5, 4),)]
    assert set(frame["dtype"]) == {"float32"}
    for column in ("mean", "std"):
        expected = [getattr(call, column) for call in result.calls]
        assert frame[column].tolist() == pytest.approx(expected)
    assert frame["nonfinite"].tolist() == [0] * 7
    gradients = result.to_pandas(gradients=True)
    assert list(gradients.columns) == ["name", "shape", "dtype", "mean", "std", "nonfinite"]
    assert gradients.to_dict("records") == [vars(one) for one in result.gradients]


@pytest.mark.check
def test_a_call_that_raised_in_a_data_frame(block: Block) -> None:
    with pytest.raises(RuntimeError) as caught, trace(block) as result:
        block(torch.ones(2, 9), scale=SCALE)
    frame = result.to_pandas()
    assert frame["output"].tolist() == [None, None]
    assert frame["error"][1] == f"RuntimeError: {caught.value}"
    assert list(trace(block).to_pandas().columns) == list(frame.columns)  # without rows
    assert "name" in trace(block).to_pandas(gradients=True)


def test_the_table_aligns_indents_and_counts(block: Block) -> None:
    result = trace(block, X, scale=SCALE, backward=lambda output: output[0].sum())
    calls, gradients = (part.splitlines() for part in str(result).split("\n\n"))
    assert calls[0].split() == [
        "call", "type", "input", "output", "dtype", "mean", "std", "non-finite",
    ]  # fmt: skip
    assert calls[1].startswith("(root) ")
    assert "5x3, 4 " in calls[1]
    assert "5x4, 2 int64 float32" in calls[1]
    assert [line.split()[0] for line in calls[2:]] == [
        "first", "act@0", "second", "second.0", "second.1", "act@1",
    ]  # fmt: skip
    assert calls[5].startswith("    second.0")
    assert len({len(line) for line in calls}) == 1
    assert gradients[0].split() == ["gradient", "shape", "dtype", "mean", "std", "non-finite"]
    assert len(gradients) == 5


def test_nothing_ran(block: Block) -> None:
    result = trace(block)
    assert "nothing ran" in str(result)
    assert (repr(result), result.stopped) == ("Trace(calls=0, gradients=0)", None)


def test_nothing_that_was_selected_ran(block: Block) -> None:
    with trace(include="conv") as result:
        block(X, scale=SCALE)
    assert str(result).startswith("nothing ran that include and exclude leave: ")


def test_gradients_alone(block: Block) -> None:
    result = trace(block, X, scale=SCALE, include="first.bias", backward=lambda y: y[0].sum())
    assert (result.calls, [one.name for one in result.gradients]) == ([], ["first.bias"])
    printed = str(result)
    assert "first.bias" in printed
    assert "nothing ran" not in printed
