"""The rules for the channel dimension."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from hookstats.hooks.channels import channel_rule, check_channel_dim, parameter_rule


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(3, 5, 1), (2, 3, 8)),
        (nn.Conv2d(3, 5, 1), (2, 3, 8, 8)),
        (nn.Conv3d(3, 5, 1), (2, 3, 4, 4, 4)),
        (nn.ConvTranspose1d(3, 5, 1), (2, 3, 8)),
        (nn.LazyConv1d(5, 1), (2, 3, 8)),
        (nn.LazyBatchNorm1d(), (2, 3, 8)),
        (nn.LazyInstanceNorm1d(), (2, 3, 8)),
        (nn.BatchNorm1d(3), (2, 3)),
        (nn.BatchNorm1d(3), (2, 3, 8)),
        (nn.InstanceNorm1d(3), (2, 3, 8)),
        (nn.GroupNorm(1, 3), (2, 3)),
        (nn.GroupNorm(1, 3), (2, 3, 8)),
        (nn.MaxPool1d(2), (2, 3, 8)),
        (nn.AdaptiveAvgPool1d(1), (2, 3, 8)),
        (nn.LPPool2d(2, 2), (2, 3, 8, 8)),
        (nn.ReLU(), (2, 3, 8, 8)),
        (nn.Identity(), (2, 3, 4, 4, 4)),
        # without a batch dimension
        (nn.Conv1d(3, 5, 1), (3, 8)),
        (nn.Conv2d(3, 5, 1), (3, 8, 8)),
        (nn.Conv3d(3, 5, 1), (3, 4, 4, 4)),
        (nn.ConvTranspose2d(3, 5, 1), (3, 8, 8)),
        (nn.InstanceNorm2d(3), (3, 8, 8)),
        (nn.MaxPool2d(2), (3, 8, 8)),
        (nn.FractionalMaxPool2d(2, 4), (3, 8, 8)),
        # the last
        (nn.Linear(3, 5), (3,)),
        (nn.Linear(3, 5), (2, 3)),
        (nn.Linear(3, 5), (2, 8, 3)),
        (nn.LayerNorm(3), (2, 8, 3)),
        (nn.ReLU(), (2, 3)),
        (nn.Identity(), (2, 2, 2, 2, 2, 3)),
    ],
)
def test_auto_finds_the_channels_of_real_modules(module: nn.Module, shape: tuple[int, ...]) -> None:
    rule = channel_rule(module, "auto")
    x = torch.randn(shape)
    y = module(x)
    assert x.shape[rule(x.dim()) or 0] == 3
    channels = 5 if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)) else 3
    assert y.shape[rule(y.dim()) or 0] == channels


def test_auto_counts_subclasses() -> None:
    class MyConv(nn.Conv1d):
        pass

    assert channel_rule(MyConv(1, 1, 1), "auto")(3) == 1


@pytest.mark.parametrize("module", [nn.Conv2d(1, 1, 1), nn.GroupNorm(1, 1), nn.ReLU()])
@pytest.mark.parametrize("channel_dim", ["auto", 1, None, {nn.Module: -1}])
def test_no_dimensions_are_one_channel(module: nn.Module, channel_dim: Any) -> None:
    assert channel_rule(module, channel_dim)(0) is None


def test_a_dimension_for_all() -> None:
    assert channel_rule(nn.Conv2d(1, 1, 1), -1)(4) == -1
    assert channel_rule(nn.Linear(1, 1), None)(2) is None


def test_a_mapping_overrides_auto_nearest_type_first() -> None:
    mapping = MappingProxyType({nn.modules.conv._ConvNd: 0, nn.Conv2d: 2, nn.Linear: None})
    assert channel_rule(nn.Conv2d(1, 1, 1), mapping)(4) == 2
    assert channel_rule(nn.Conv1d(1, 1, 1), mapping)(3) == 0
    assert channel_rule(nn.Linear(1, 1), mapping)(2) is None
    assert channel_rule(nn.BatchNorm2d(1), mapping)(4) == 1


def test_parameters() -> None:
    for ndim in range(3):
        rule = parameter_rule(torch.zeros([2] * ndim))
        assert [rule(n) for n in range(3)] == [0 if n == ndim > 0 else None for n in range(3)]


def test_parameters_that_fsdp_flattened_have_no_channels() -> None:
    parameter = nn.Parameter(torch.zeros(6))
    parameter._fsdp_flattened = True
    assert parameter_rule(parameter)(1) is None


def test_lazy_parameters_may_get_any_shape() -> None:
    rule = parameter_rule(nn.LazyLinear(3).weight)
    assert [rule(ndim) for ndim in range(3)] == [None, 0, 0]


@pytest.mark.parametrize("channel_dim", ["auto", 0, -1, None, {}, {nn.Linear: 1, nn.ReLU: None}])
def test_good_channel_dims(channel_dim: Any) -> None:
    check_channel_dim(channel_dim)


@pytest.mark.parametrize(
    ("channel_dim", "message"),
    [
        ("last", r'channel_dim = \'last\': expected "auto", an int, None'),
        (1.5, r"channel_dim = 1.5: expected"),
        (True, r"channel_dim = True: expected"),
        ((nn.Linear, 1), r"channel_dim = \(.*expected"),
        ({"conv": 1}, r"channel_dim has 'conv': 1, expected"),
        ({nn.Linear(1, 1): 1}, r"channel_dim has Linear.*: 1, expected"),
        ({int: 1}, r"channel_dim has <class 'int'>: 1, expected"),
        ({nn.Linear: "last"}, r"channel_dim has <class .*Linear'>: 'last', expected"),
    ],
)
def test_bad_channel_dims(channel_dim: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_channel_dim(channel_dim)
