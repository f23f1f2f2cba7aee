"""The sites of a record stand in the order in which they ran in its step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.expected import assert_stats
from support.modules import take_step
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs
from hookstats.insight.layers import first_nonfinite
from hookstats.records.keys import InOrder
from hookstats.show.overview import overview

pytestmark = pytest.mark.usefixtures("hooks_in")


class Routed(nn.Module):
    """Calls its layers in the order that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(3, 3) for name in "abcd"})

    def forward(self, x: Tensor, route: str) -> Tensor:
        for name in route:
            x = self.layers[name](x)
        return x


def names(record: hs.StepRecord, kind: str) -> str:
    return "".join(name[-1] for name, of in record if of == kind)


def test_sites_are_in_the_order_of_their_step(tmp_path: Path) -> None:
    """Of a layer that first runs late, of layers that change places, of one that is called twice:
    with their own statistics, and after a run was read, too."""
    model = Routed()
    optimizer = SGD(model.parameters(), lr=0.1)
    routes = ("ad", "ad", "acd", "dca", "abcd", "bd", "cacd", "abcd")
    with hs.watch(model, optimizer, every=1, out=tmp_path / "run", channels="always") as w:
        seen: dict[str, list[Tensor]] = {}
        for name, layer in model.layers.items():
            layer.register_forward_hook(
                lambda _, args, y, name=name: seen.setdefault(name, []).append(y.detach())
            )
        for route in routes:
            seen.clear()
            take_step(optimizer, model(torch.randn(5, 3), route).sum())
            record, distinct = w.latest, "".join(dict.fromkeys(route))
            assert names(record, "output") == distinct
            assert names(record, "grad_output") == "".join(dict.fromkeys(reversed(route)))
            for name in distinct:
                assert_stats(record[f"layers.{name}", "output"], seen[name], 1)
    run = hs.open_run(tmp_path / "run")
    for step, route in enumerate(routes):
        assert names(run[step], "output") == "".join(dict.fromkeys(route))
        assert run[step].dead.shape == (len(run[step]),)
    shown = [site.name[-1] for site in overview(run).sites if site.kind == "output"]
    assert "".join(shown) == "abcd"


def test_the_first_tensor_that_is_not_finite_is_the_first_of_its_step() -> None:
    model = Routed()
    with torch.no_grad():
        model.layers["b"].bias.fill_(torch.nan)
    with hs.watch(model, SGD(model.parameters(), lr=0.1), every=1) as w:
        for route in ("acd", "acd", "abcd"):
            model(torch.randn(5, 3), route)
            w.step()
        found = first_nonfinite(w.latest)
        assert found is not None
        assert (found.site, found.kind, found.after) == ("layers.b", "output", 2)
        (alert,) = (alert for alert in w.alerts if alert.rule == "non-finite")
        assert (alert.step, alert.site) == (2, "layers.b")


def test_steps_and_ranks_agree_on_an_order() -> None:
    assert list(InOrder(("ad", "acd", "abcd", "xa", "dz", "pq"))) == list("xabcdzpq")
    assert list(InOrder(("ab", "ba"))) == ["a", "b"]
    assert list(InOrder[str]()) == []


def test_two_runs_part_at_the_layer_that_one_of_them_has(tmp_path: Path) -> None:
    for path, route in (("one", "ad"), ("other", "abd")):
        torch.manual_seed(0)
        model = Routed()
        with hs.watch(model, every=1, out=tmp_path / path) as w:
            model(torch.ones(5, 3), route)
            w.step()
    compared = hs.compare(tmp_path / "one", tmp_path / "other")
    assert compared.first is not None
    _, (difference, *_) = compared.first
    assert difference.name == "layers.b"
