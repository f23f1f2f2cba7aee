"""torchtitan's own Trainer, watched: its results keep every bit, steps are its own."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.programs import run_python

from hookstats.runs.run import open_run

pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torchtitan", "triton"))),
        reason="needs torchtitan and triton",
    ),
]


def train(folder: Path, *options: str, ranks: int = 1) -> Any:
    """The weights' digest, and what the Trainer logged."""
    arguments = ["-m", "support.titan", str(folder), *options]
    return json.loads(run_python(folder.parent, *arguments, ranks=ranks).splitlines()[-1])


def losses(found: Any) -> list[float]:
    return [values["loss_metrics/global_avg_loss"] for _, values in found["logged"]]


@pytest.mark.parametrize("options", [(), ("compiled",)])
def test_the_trainer_keeps_its_bits_and_its_numbers(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    plain = train(tmp_path / "plain", *options)
    watched = train(tmp_path / "watched", "watched", *options)
    assert watched["digest"] == plain["digest"]
    assert losses(watched) == losses(plain)
    run = open_run(tmp_path / "watched" / "hookstats")
    assert run.closed
    assert run.steps == [1, 2, 3, 4]
    assert run.coverage is not None
    assert all(row["observed"] == 4 for row in run.coverage["rows"])
    assert run[4]["", "input"].count.tolist() == [2 * 32]
    assert run[4]["layers.1.feed_forward.w2", "grad_output"].count.sum() == 2 * 32 * 256
    for step, values in watched["logged"]:
        scalars = run.scalars.at(step)
        assert scalars["loss"] == values["loss_metrics/global_avg_loss"]
        assert scalars["grad_norm_before_clipping"] == values["grad_norm"]
        assert scalars["grad_norm"] == pytest.approx(values["hookstats/grad_norm"])
        assert scalars["grad_norm"] == pytest.approx(min(1.0, values["grad_norm"]), rel=1e-2)
        assert values["hookstats/alerts"] == 0


@pytest.mark.parametrize("how", ["fsdp", "tp"])
def test_two_ranks_write_one_run(tmp_path: Path, how: str) -> None:
    plain = train(tmp_path / "plain", how, ranks=2)
    watched = train(tmp_path / "watched", how, "watched", ranks=2)
    assert watched["digest"] == plain["digest"]
    assert losses(watched) == losses(plain)
    run = open_run(tmp_path / "watched" / "hookstats")
    assert run.closed
    assert run.ranks == [0, 1]
    assert run.steps == [1, 2, 3, 4]
    batches = 2 if how == "fsdp" else 1
    assert run.header.get("grad_scale", 1.0) == 1 / batches
    assert run[4]["", "input"].count.sum() == batches * 2 * 32
    for kind in ("output", "grad_output"):
        assert run[4]["lm_head", kind].count.sum() == batches * 2 * 32 * 2048
    for name, size in [("feed_forward.w1", 768 * 256), ("attention_norm", 256)]:
        assert run[4][f"layers.1.{name}.weight", "param_grad"].count.sum() == size
    for step, values in watched["logged"]:
        norm = run.scalars.at(step)["grad_norm"]
        assert norm == pytest.approx(min(1.0, values["grad_norm"]), rel=1e-2)
        assert "hookstats/grad_norm" not in values  # that of a part
        assert values["hookstats/alerts"] == 0


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    code = (
        "import support.titan\n"
        "from hookstats.integrations.torchtitan import watch\n"
        "try:\n    watch(None, evry=1)\nexcept ValueError as error:\n    print(error)"
    )
    said = run_python(tmp_path, "-c", code)
    assert said.startswith("evry = 1; did you mean 'every'?: expected arguments of watch, kinds")


def test_a_checkpoint_continues_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = train(folder, "watched")
    shutil.rmtree(folder / "checkpoint" / "step-4")
    assert train(folder, "watched")["digest"] == whole["digest"]
    run = open_run(folder / "hookstats")
    assert run.steps == [1, 2, 3, 4]
    parts = run._parts.index[0]
    assert parts[3].part.step == 3
    assert parts[3].part.number > parts[2].part.number
    assert not (folder / "hookstats-1").exists()


def test_the_script_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "trainers" / "torchtitan.md").read_text("utf-8")
    block = re.search(r"^:caption: (\S+)\n\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    (tmp_path / block[1]).write_text(block[2], "utf-8")
    start = f"import runpy, support.titan; runpy.run_path({block[1]!r}, run_name='__main__')"
    words = ["--module", "support.titan", "--config", "tiny", "--dump_folder", "out"]
    run_python(tmp_path, "-c", start, *words)
    assert open_run(tmp_path / "out" / "hookstats").closed
