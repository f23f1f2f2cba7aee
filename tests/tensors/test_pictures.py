"""pictures: the grid of torchvision's make_grid, by its definition; what it leaves undefined."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import hookstats as hs
from hookstats.tensors import pictures


def make_grid(
    maps: Tensor, nrow: int, padding: int, scale_each: bool, pad_value: float
) -> NDArray[Any]:
    """What torchvision's make_grid(maps, nrow, padding, True, None, scale_each, pad_value) of
    [maps, 1, height, width] is defined to be, pixel by pixel, as its save_image rounds it."""
    maps = maps.squeeze(1)
    groups = maps if scale_each else [maps]
    scaled = [(x - x.min()) / max(float(x.max() - x.min()), 1e-5) for x in groups]
    shares = torch.stack(list(scaled)).view_as(maps)
    count, height, width = shares.shape
    if count == 1:
        grid = shares[0]
    else:
        columns = min(nrow, count)
        rows = math.ceil(count / columns)
        grid = torch.full(
            (rows * (height + padding) + padding, columns * (width + padding) + padding),
            pad_value,
            dtype=shares.dtype,
        )
        for k, y, x in itertools.product(range(count), range(height), range(width)):
            top = padding + k // columns * (height + padding)
            left = padding + k % columns * (width + padding)
            grid[top + y, left + x] = shares[k, y, x]
    rounded = (grid * 255 + 0.5).clamp(0, 255).to(torch.uint8)
    return rounded.unsqueeze(-1).expand(-1, -1, 3).numpy()


@pytest.mark.parametrize("scale_each", [True, False])
@pytest.mark.parametrize("shape", [(1, 64, 9, 7), (1, 10, 5, 5), (1, 1, 4, 6), (1, 3, 1, 1)])
def test_the_numbers_are_those_of_make_grid(shape: tuple[int, ...], scale_each: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64) * torch.arange(1.0, shape[1] + 1).view(-1, 1, 1)
    nrow = int(np.sqrt(shape[1]))
    got = pictures.grid(x, scale_each=scale_each)
    assert got.dtype == np.uint8
    expected = make_grid(x.transpose(0, 1), nrow, 2, scale_each, 0.0)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(("nrow", "padding", "pad_value"), [(1, 0, 0.0), (4, 1, 1.0), (50, 3, 0.5)])
def test_the_layout_is_that_of_make_grid(nrow: int, padding: int, pad_value: float) -> None:
    x = torch.randn(10, 4, 6, dtype=torch.float64)
    got = pictures.grid(x, nrow=nrow, padding=padding, pad_value=pad_value)
    expected = make_grid(x.unsqueeze(1), nrow, padding, True, pad_value)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(6, 4, 4).abs() * 20).to(dtype)
    np.testing.assert_array_equal(pictures.grid(x), pictures.grid(x.double()))


def test_samples_and_shapes() -> None:
    x = torch.randn(3, 5, 4, 4, requires_grad=True)
    np.testing.assert_array_equal(pictures.grid(x, 2), pictures.grid(x[2]))
    np.testing.assert_array_equal(pictures.grid(x, -1), pictures.grid(x[2]))
    np.testing.assert_array_equal(pictures.grid(x), pictures.grid(x[0]))
    np.testing.assert_array_equal(pictures.grid(x[0, 1]), pictures.grid(x[0, 1:2]))


def test_zoom_makes_values_larger_and_padding_no_thicker() -> None:
    x = torch.randn(4, 3, 5)
    large = pictures.grid(x, zoom=3)
    assert large.shape == (2 * 9 + 3 * 2, 2 * 15 + 3 * 2, 3)
    small = pictures.grid(x)
    np.testing.assert_array_equal(large[2:11:3, 2:17:3], small[2:5, 2:7])


def test_what_is_not_finite_has_a_colour_and_no_part_in_the_scale() -> None:
    x = 10 + torch.tensor([[[0.0, 1.0, torch.nan], [torch.inf, -torch.inf, 0.5]]])
    picture = pictures.grid(x)
    grey = [[0] * 3, [255] * 3, list(pictures.NAN)]
    rest = [list(pictures.POSINF), list(pictures.NEGINF), [128] * 3]
    assert picture.tolist() == [grey, rest]
    assert (pictures.grid(torch.full((2, 2), torch.nan)) == pictures.NAN).all()
    # The other maps are as without it.
    both = torch.stack((x[0], torch.arange(6.0).view(2, 3)))
    np.testing.assert_array_equal(
        pictures.grid(both, padding=0, nrow=1)[2:], pictures.grid(both[1])
    )


@pytest.mark.parametrize("value", [0.0, 7.0, -1e30])
def test_a_constant_map_is_black(value: float) -> None:
    assert not pictures.grid(torch.full((2, 3), value)).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e30, 1.7e308])
def test_small_and_great_spans_have_full_contrast(scale: float) -> None:
    x = torch.linspace(-1, 1, 256, dtype=torch.float64).view(16, 16)
    np.testing.assert_array_equal(pictures.grid(x * scale), pictures.grid(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(3)}, r"x: torch\.float32 of shape \(3,\), expected real numbers of sh"),
        ({"x": torch.ones(0, 3, 3)}, r"x: .* of shape \(0, 3, 3\), expected"),
        ({"x": torch.ones(2, 2, dtype=torch.complex64)}, r"x: torch\.complex64 of shape"),
        ({"x": torch.ones(2, 1, 3, 3), "sample": 2}, "sample = 2: expected one of the 2 samples"),
        ({"nrow": 0}, "nrow = 0: expected an integer, 1 or more"),
        ({"padding": -1}, "padding = -1: expected an integer, 0 or more"),
        ({"zoom": 1.5}, r"zoom = 1\.5: expected an integer, 1 or more"),
        ({"pad_value": 255}, r"pad_value = 255: expected a number from 0\.0 to 1\.0"),
        ({"pad_value": "0"}, r"pad_value = '0': expected a number from 0\.0 to 1\.0"),
        ({"x": np.ones((3, 3))}, r"x: ndarray, expected a torch\.Tensor"),
        ({"sample": "0"}, "sample = '0': expected an integer"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        pictures.grid(**({"x": torch.ones(4, 3, 3)} | arguments))


# Of a capture


def test_the_maps_of_a_captured_call() -> None:
    model = nn.Sequential(nn.Conv2d(1, 9, 3), nn.LSTM(4, 2))
    images = torch.randn(2, 2, 1, 8, 8)
    with hs.capture(model[0]) as c:
        for image in images:
            model[0](image).square().sum().backward()
    first, last = c["", "output"]
    np.testing.assert_array_equal(c.grid(""), pictures.grid(last))
    np.testing.assert_array_equal(
        c.grid("", call=0, sample=1, nrow=2), pictures.grid(first, 1, nrow=2)
    )
    gradient = c["", "grad_output"][1]
    np.testing.assert_array_equal(c.grid("", "grad_output"), pictures.grid(gradient))


def test_the_first_of_several_tensors() -> None:
    model = nn.LSTM(4, 2)
    with hs.capture(model, kinds=("output", "grad_output")) as c:
        model(torch.randn(5, 3, 4))
    np.testing.assert_array_equal(c.grid(""), pictures.grid(c["", "output[0]"][0]))
    np.testing.assert_array_equal(c.grid("", "output[1][1]"), pictures.grid(c["", "output"][0][2]))
    for kind in ("grad_output", "grad_output[1][0]"):
        with pytest.raises(
            ValueError, match=r"call = -1: it has no grad_output.* of '' \(missing\)"
        ):
            c.grid("", kind)
    with pytest.raises(ValueError, match="call = 3: 1 calls of '' are kept, expected one of them"):
        c.grid("", call=3)


def test_no_map_is_left_of_calls_that_were_dropped() -> None:
    model = nn.Conv2d(1, 9, 3)
    with hs.capture(model, kinds=("output",), max_bytes=4) as c:
        model(torch.randn(2, 1, 8, 8))
        model(torch.randn(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"0 calls of '' are kept \(2 dropped, for .*max_bytes\)"):
        c.grid("")


# Elsewhere


def test_a_pil_image(tmp_path: Path) -> None:
    picture = pictures.grid(torch.randn(4, 3, 3))
    image = pictures.to_image(picture)
    assert image.mode == "RGB"
    image.save(tmp_path / "maps.png")
    with Image.open(tmp_path / "maps.png") as opened:
        np.testing.assert_array_equal(np.asarray(opened), picture)


@pytest.mark.parametrize(
    "bad", [torch.ones(3, 3, 3), np.ones((3, 3, 3)), np.ones((3, 3), np.uint8)]
)
def test_what_is_no_picture_is_no_image(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^picture: .*expected an array, uint8 \[height, width"):
        pictures.to_image(bad)


@pytest.mark.check
def test_tensorboard_has_the_picture(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    picture = pictures.grid(torch.randn(4, 3, 5))
    with SummaryWriter(str(tmp_path)) as writer:
        pictures.add_image(writer, "feature maps", picture, step=322)
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Images("feature maps")
    assert (event.step, event.height, event.width) == (322, *picture.shape[:2])
    (tmp_path / "event.png").write_bytes(event.encoded_image_string)
    with Image.open(tmp_path / "event.png") as opened:
        np.testing.assert_array_equal(np.asarray(opened), picture)


@pytest.mark.check
def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    picture = pictures.grid(torch.ones(2, 2))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"to_image needs pillow .*: pip install pillow"):
        pictures.to_image(picture)
    with (
        SummaryWriter(str(tmp_path)) as writer,
        pytest.raises(ImportError, match=r"add_image needs pillow .*: pip install pillow"),
    ):
        pictures.add_image(writer, "feature maps", picture)
