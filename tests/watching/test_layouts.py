"""watch() records which part of the whole each rank has: of DTensors, under wrappers, on a mesh."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.ranks import RANKS, Ranks
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs
from hookstats.hooks import sharding
from hookstats.hooks.sharding import batch_wrappers
from hookstats.records.layout import Axis, Cut, Layout, Mesh
from hookstats.runs.world import current_world
from hookstats.watching.settings import KINDS

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

pytestmark = pytest.mark.check


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def layouts(
    model: nn.Module, x: Tensor, kinds: tuple[str, ...] = KINDS, **arguments: Any
) -> dict[tuple[str, str], Layout | None]:
    """Of one step of training."""
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=kinds, **arguments) as w:
        model(x).square().sum().backward()
        optimizer.step()
        for row in w.coverage():
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
        return {(site.name, site.kind): site.layout for site in w.latest.sites}


def line(name: str, rank: int) -> tuple[Mesh, ...]:
    return (Mesh((Axis(name, rank, RANKS),), 0),)


def within_ddp(rank: int, out: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    wrapper = nn.parallel.DistributedDataParallel(model)
    with hs.watch(model, optimizer, out=out) as w:
        wrapper(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        found = {(site.name, site.kind): site.layout for site in w.latest.sites}
    mesh = line("dp_replicate", rank)
    assert found["2", "output"] == Layout(mesh, ("Shard(0)",), (-1, 2), None)
    assert found["0.weight", "param_grad"] == Layout(mesh, ("Replicate",), (4, 3), ())


def test_the_wrapper_around_a_watched_model_counts(ranks: Ranks, tmp_path: Path) -> None:
    ranks(within_ddp, str(tmp_path / "run"))
    assert hs.open_run(tmp_path / "run").header["grad_scale"] == 1 / RANKS


def between_wrappers(rank: int, how: str) -> tuple[list[int], int]:
    """The ranks that a watch of a wrapped model sees, and how often all objects were searched."""
    model = network()
    others = network()
    alone, _ = torch.distributed.new_subgroups(1)
    ddp = nn.parallel.DistributedDataParallel
    made = [
        ddp(model, process_group=group) for group in (alone, None)[:: 1 if how != "new" else -1]
    ]
    if how == "left":
        torch.distributed.destroy_process_group(alone)
    looks = 0

    def counted() -> list[nn.Module]:
        nonlocal looks
        looks += 1
        return batch_wrappers()

    seen = []
    with (
        patch.object(sharding, "batch_wrappers", counted),
        hs.watch([others, model], kinds=["output"], rules=()) as w,
    ):
        made[how != "new"](torch.randn(5, 3))
        w.step()
        for site in w.latest.sites:
            assert site.layout is not None
            (mesh,) = site.layout.meshes
            seen.append(mesh.axes[0].size)
    return seen, looks


@pytest.mark.parametrize("how", ["old", "new", "left"])
def test_of_several_wrappers_the_one_over_most_ranks_counts(ranks: Ranks, how: str) -> None:
    """The first, the last, or one whose group is gone, is over fewer."""
    for seen, looks in ranks(between_wrappers, how):
        assert set(seen) == {RANKS}
        assert looks == 1


def under_fsdp1(rank: int, use_orig_params: bool) -> tuple[int, dict[str, int]]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))  # 26 parameters, or 27
    model.register_parameter("odd", nn.Parameter(torch.ones(1)))
    model = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=use_orig_params
    )
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param", "param_grad", "output")) as w:
        for _ in range(2):
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
        counted = 0
        for site in w.latest.sites:
            assert site.layout is not None
            assert site.layout.meshes == line("dp_shard", rank)
            assert site.layout.placements == ("Shard(0)",)
            stats = w.latest[site.name, site.kind]
            assert int(stats.count.sum()) > 0
            if site.kind == "param":
                counted += int(stats.count.sum())
        skipped: dict[str, int] = {}
        for row in w.coverage():
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
            if row.kind != "output":
                for reason, n in row.skipped.items():
                    skipped[reason] = skipped.get(reason, 0) + n
                assert not row.missing or row.name == "odd"
    return counted, skipped


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_under_fsdp1_neither_padding_nor_empty_shards_are_counted(
    ranks: Ranks, use_orig_params: bool
) -> None:
    (one, skipped), (other, also) = ranks(under_fsdp1, use_orig_params)
    assert one + other == 27
    assert {*skipped, *also} == ({"empty shard"} if use_orig_params else set())


def tensor_parallel(rank: int, use_local_output: bool) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    plan = {
        "0": ColwiseParallel(use_local_output=use_local_output),
        "2": RowwiseParallel(use_local_output=use_local_output),
    }
    model = torch.distributed.tensor.parallel.parallelize_module(network(), mesh, plan)
    found = layouts(model, torch.randn(2, 5, 3))
    here = line("tp", rank)
    half = (Cut(2, 2 * rank, 2, 0, 1),)
    # Also of the activation, which only its graph knows to be part of a DTensor.
    for key in (("0", "output"), ("0", "grad_output"), ("1", "output"), ("1", "grad_output")):
        assert found[key] == Layout(here, ("Shard(2)",), (2, 5, 4), half), key
    for key in (("0", "input"), ("2", "output"), ("2", "grad_output")):
        layout = found[key]
        assert layout is not None
        assert (layout.meshes, layout.placements, layout.cuts) == (here, ("Replicate",), ())
    cut = Layout(here, ("Shard(1)",), (2, 4), (Cut(1, 2 * rank, 2, 0, 1),))
    assert found["2.weight", "param"] == cut
    assert found["2.bias", "param_grad"] == Layout(here, ("Replicate",), (2,), ())
    alone = layouts(model, torch.randn(2, 5, 3), ("grad_output",))
    assert alone == {key: layout for key, layout in found.items() if key[1] == "grad_output"}


@pytest.mark.parametrize("use_local_output", [True, False])
def test_tensor_parallel_outputs_know_their_channels(ranks: Ranks, use_local_output: bool) -> None:
    ranks(tensor_parallel, use_local_output)


def on_a_mesh(rank: int) -> None:
    mesh = torch.distributed.init_device_mesh(
        "cpu", (1, RANKS, 1), mesh_dim_names=("dp", "cp", "tp")
    )
    found = layouts(network(), torch.randn(2, 5, 3), mesh=mesh)
    assert found["0", "output"] == Layout(line("cp", rank), ("Shard(1)",), (2, -1, 4), None)
    assert found["0.bias", "param"] == Layout(line("cp", rank), ("Replicate",), (4,), ())
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    found = layouts(network(), torch.randn(2, 5, 3), mesh=mesh)
    assert found["0", "output"] == Layout(line("tp", rank), ("Unknown",), None, None)
    assert set(layouts(network(), torch.randn(5, 3)).values()) == {None}


def test_a_mesh_says_how_plain_tensors_are_spread(ranks: Ranks) -> None:
    ranks(on_a_mesh)


def strided(rank: int) -> None:
    """The indices of every cut are those that DTensor itself takes from a range."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    from hookstats.hooks.sharding import Sharding

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for placement in (Shard(0), _StridedShard(0, split_factor=3)):
        for rows in (1, 7, 12):
            whole = torch.arange(rows)
            (part, _) = placement._split_tensor(whole, RANKS, with_padding=False)
            local = part[rank][:, None].expand(-1, 2).float().contiguous()
            x = DTensor.from_local(local, mesh, [placement], shape=(rows, 2), stride=(2, 1))
            layout = Sharding([nn.Identity()]).layout("output", x)
            assert layout is not None
            indices = layout.channels(0)
            assert indices is not None
            np.testing.assert_array_equal(indices, part[rank].numpy())
            assert layout.channels(1) is None


def test_cuts_are_what_dtensor_cuts(ranks: Ranks) -> None:
    ranks(strided)


def taken(rank: int, out: Path) -> dict[str, Any] | None:
    with pytest.raises(FileExistsError, match="holds another run"):
        hs.watch(network(), out=out)
    return current_world()


def test_no_rank_writes_into_the_run_of_one_process(ranks: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert (current_world() or {}).keys() == {"size", "started"}
    with hs.watch(network(), out=tmp_path) as w:
        w.step()
    one, other = ranks(taken, tmp_path)
    assert one == other
    assert one["size"] == RANKS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", one["started"])
