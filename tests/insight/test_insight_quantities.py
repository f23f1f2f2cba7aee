"""insight.quantities: against casts block by block and against decompositions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hookstats as hs
from hookstats.insight.quantities import (
    BLOCK_FORMATS,
    ITERATIONS,
    block_losses,
    singular_entropy,
    stable_rank,
)

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def wide(*shape: int, octaves: float = 20.0) -> Tensor:
    """Numbers of both signs, their magnitudes spread over octaves; a block is zeros."""
    torch.manual_seed(0)
    values = torch.exp2(torch.empty(shape).uniform_(-octaves, 0)) * torch.randn(shape).sign()
    values.view(-1)[::7] = 0.0
    values.view(-1)[:32] = 0.0
    return values


def cast(scaled: Tensor, name: str) -> Tensor:
    """Round to nearest, ties to even; beyond the greatest number and half a step, infinity."""
    if name.startswith("mxfp8"):
        dtype = torch.float8_e4m3fn if name.endswith("e4m3") else torch.float8_e5m2
        rounded = scaled.float().to(dtype).double()
        beyond = 464 if name.endswith("e4m3") else 61440  # newer versions of torch clip
        return rounded.where(scaled.abs() < beyond, math.inf)
    near = (scaled.abs()[:, None] - FP4).abs().argmin(1)  # the random numbers have no ties
    return FP4[near].where(scaled.abs() < 7, math.inf)


def scale_of(block: Tensor, whole: float, name: str) -> float:
    """The scale of a block in plain Python."""
    amax = float(block.abs().max())
    if name == "nvfp4":
        tensor_scale = whole / (448 * 6)
        if not whole:
            return 0.0
        return float(torch.tensor(amax / 6 / tensor_scale).to(torch.float8_e4m3fn)) * tensor_scale
    last_octave = {"mxfp8_e4m3": 8, "mxfp8_e5m2": 15, "mxfp4": 2}[name]
    return 2.0 ** (math.floor(math.log2(amax)) - last_octave) if amax else 2.0**-127


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("length", [1, 16, 31, 64, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shares_and_scales_are_those_of_casts(name: str, length: int, dtype: torch.dtype) -> None:
    values = wide(60, length).to(dtype)
    found = block_losses(values, name)
    whole = float(values.abs().max())
    size = BLOCK_FORMATS[name].size
    for i, column in enumerate(values.double().split(size, dim=1)):
        for row, block in enumerate(column):
            scale = scale_of(block, whole, name)
            numbers = block[block != 0]
            rounded = cast(numbers / scale, name) if scale else torch.zeros_like(numbers)
            assert found["under"][row, i].item() == pytest.approx(
                (rounded == 0).sum().item() / len(block)
            )
            assert found["over"][row, i].item() == pytest.approx(
                rounded.isinf().sum().item() / len(block)
            )
            if scale:
                assert found["log2_scale"][row, i].item() == pytest.approx(
                    math.log2(scale), rel=1e-5, abs=1e-5
                )
    assert all(part.isfinite().all() for part in found.values())


def test_numbers_that_are_not_finite_count_as_zeros() -> None:
    values = wide(2, 64)
    marked = values.clone()
    marked[0, 40], marked[1, 5], marked[1, 6] = math.nan, math.inf, -math.inf
    values[0, 40] = values[1, 5] = values[1, 6] = 0.0
    for name in BLOCK_FORMATS:
        for key, part in block_losses(marked, name).items():
            assert torch.equal(part, block_losses(values, name)[key])
        nothing = block_losses(torch.zeros(2, 40), name)
        assert all(part.isfinite().all() for part in nothing.values())
        assert not nothing["under"].any()
        assert not nothing["over"].any()


def matrices() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "random": torch.randn(48, 96),
        "tall": torch.randn(200, 30),
        "rank one": torch.outer(torch.randn(20), torch.randn(30)),
        "equal": torch.linalg.qr(torch.randn(24, 24))[0],
        "two blocks": torch.block_diag(torch.full((1, 1), 2.0), torch.ones(50, 2)),
        "huge": torch.randn(16, 16) * 1e30,
        "tiny": torch.randn(16, 16) * 1e-30,
        "batch": torch.randn(3, 10, 20),
        "bf16": torch.randn(32, 32).bfloat16(),
    }


def powered(matrix: Tensor) -> Tensor:
    """The stable rank by the same power iterations."""
    x = torch.arange(1, matrix.shape[-1] + 1).double().square().cos()[:, None]
    for _ in range(ITERATIONS):
        x = matrix.mT @ (matrix @ x)
        x = x / x.norm(dim=-2, keepdim=True)
    return matrix.square().sum((-2, -1)) / (matrix @ x).square().sum((-2, -1))


@pytest.mark.parametrize("name", matrices())
def test_rank_and_entropy_are_those_of_a_decomposition(name: str) -> None:
    matrix = matrices()[name]
    squares = torch.linalg.svdvals(matrix.double()).square()
    rank = squares.sum(-1) / squares[..., 0]
    found = stable_rank(matrix).double()
    gap = (squares[..., 1] / squares[..., 0]).sqrt().max().item()
    tolerance = 1e-3 if gap < 0.9 else 0.1
    torch.testing.assert_close(found, rank, rtol=tolerance, atol=0)
    torch.testing.assert_close(found, powered(matrix.double()), rtol=1e-5, atol=0)
    assert bool((found >= rank * (1 - 1e-5)).all())
    shares = squares / squares.sum(-1, keepdim=True)
    entropy = -shares.square().sum(-1).log()
    torch.testing.assert_close(singular_entropy(matrix).double(), entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantity", [stable_rank, singular_entropy])
def test_a_matrix_of_zeros_has_0_and_one_with_infinities_nan(
    quantity: Callable[[Tensor], Tensor],
) -> None:
    matrices = torch.stack([torch.zeros(2, 2), torch.eye(2) + 1, torch.eye(2) * math.inf])
    zero, some, undefined = quantity(matrices)
    assert zero == 0
    assert some > 0
    assert undefined.isnan()


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"form = 'fp8'.*mxfp8_e4m3"):
        block_losses(torch.ones(4), "fp8")
    with pytest.raises(ValueError, match="values: expected floating-point"):
        block_losses(torch.ones(4, dtype=torch.int64), "nvfp4")
    with pytest.raises(ValueError, match="matrix: expected floating-point"):
        stable_rank(torch.ones(4))
    with pytest.raises(ValueError, match="values: expected floating-point"):
        block_losses(torch.ones(3, 0), "nvfp4")


def test_they_are_recorded_and_leave_the_training_as_it_is() -> None:
    def train(is_watched: bool) -> tuple[Tensor, hs.Watch | None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch = hs.watch(model, optimizer, every=1) if is_watched else None
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            weight = model[0].weight
            for name, quantity in (("rank", stable_rank), ("entropy", singular_entropy)):
                hs.observe(f"0.{name}", lambda q=quantity, w=weight: q(w), channel_dim=None)
            hs.observe("0.mx", lambda w=weight: block_losses(w.grad, "mxfp4"), channel_dim=None)
            optimizer.step()
        return model[0].weight.detach(), watch

    plain, _ = train(is_watched=False)
    watched, watch = train(is_watched=True)
    assert torch.equal(plain, watched)
    assert watch is not None
    latest = watch.latest
    kinds = {kind for name, kind in latest if name == "0.mx"}
    assert kinds == {"output.under", "output.over", "output.log2_scale"}
    assert 1 < latest["0.rank", "output"].mean.item() < 64
    assert 0 < latest["0.entropy", "output"].mean.item() < math.log(64)
    watch.close()
