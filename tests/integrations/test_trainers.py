"""The callbacks of trainers, with the real ones: training keeps its bits, steps are theirs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import fit_accelerate, fit_lightning, fit_transformers
from torch import Tensor

from hookstats.rules import LossGraph
from hookstats.runs.run import Run, open_run
from hookstats.watching.config import load_config

pytestmark = [
    pytest.mark.check,
    # Of the trainers.
    pytest.mark.filterwarnings("default"),
]


def skipped(run: Run, name: str) -> dict[str, int]:
    assert run.coverage is not None
    rows = run.coverage["rows"]
    return next(row["skipped"] for row in rows if (row["name"], row["kind"]) == (name, "output"))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True, "gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    ],
    ids=["plain", "bf16-checkpoints", "compiled"],
)
def test_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = fit_transformers(tmp_path / "plain", [], **options)
    from hookstats.integrations.transformers import WatchCallback

    callback = WatchCallback(kinds=("output", "param_grad"))
    watched = fit_transformers(tmp_path / "watched", [callback], **options)
    assert same(plain.model.state_dict(), watched.model.state_dict())
    assert callback.watch is None
    run = open_run(tmp_path / "watched" / "hookstats")
    assert run.closed
    assert run.steps == [1, 2, 3, 4, 5, 6]
    tokens = run[1]["transformer.h.0.ln_1", "output"].count.sum()
    assert tokens == 2 * 2 * 8 * 16  # of two micro-batches
    assert skipped(run, "transformer.h.0.ln_1")["evaluation"] == 2
    scalars = run.scalars
    assert scalars["loss"].steps.tolist() == [2, 4, 6]
    assert scalars["eval_loss"].steps.tolist() == [3, 6]
    logged = [entry for entry in watched.state.log_history if "loss" in entry]
    assert scalars["loss"].values.tolist() == [entry["loss"] for entry in logged]
    for entry in logged:
        assert entry["hookstats/grad_norm"] == pytest.approx(
            run[entry["step"]].scalars["grad_norm"]
        )
        assert scalars.at(entry["step"])["grad_norm_before_clipping"] == entry["grad_norm"]
    assert (scalars["grad_norm"].values < 0.501).all()


def test_transformers_resumes(tmp_path: Path) -> None:
    whole = fit_transformers(tmp_path, [])
    from hookstats.integrations.transformers import WatchCallback

    callbacks = [WatchCallback()]
    fit_transformers(tmp_path, callbacks)
    checkpoint = str(tmp_path / "checkpoint-3")
    again = [WatchCallback(overwrite=True)]  # a run that is continued is not deleted
    resumed = fit_transformers(tmp_path, again, resume=checkpoint)
    assert same(whole.model.state_dict(), resumed.model.state_dict())
    run = open_run(tmp_path / "hookstats")
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert run._parts.index[0][6].part.number > run._parts.index[0][3].part.number
    assert not (tmp_path / "hookstats-1").exists()
    fit_transformers(tmp_path, callbacks)  # from the beginning: another run
    assert open_run(tmp_path / "hookstats-1").steps == [1, 2, 3, 4, 5, 6]


def test_transformers_whose_training_fails(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import TrainerCallback

    from hookstats.integrations.transformers import WatchCallback

    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 4:
                raise ValueError("of the training")

    callback = WatchCallback()
    with pytest.raises(ValueError, match="of the training"):
        fit_transformers(tmp_path, [callback, Fails()])
    assert callback.watch is not None  # the Trainer tells nobody
    fit_transformers(tmp_path, [callback])
    run = open_run(tmp_path / "hookstats")
    assert run.closed
    assert run.steps == [1, 2, 3, 4]
    assert open_run(tmp_path / "hookstats-1").steps == [1, 2, 3, 4, 5, 6]


def test_callbacks_take_the_arguments_of_watch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    from hookstats.integrations import lightning, transformers

    for made in (lightning.WatchCallback, transformers.WatchCallback):
        for wrong in ({"kind": "output"}, {"optimizer": None}, {"append": True}):
            name = next(iter(wrong))
            with pytest.raises(ValueError, match=f"{name} = .*expected arguments of watch, kinds"):
                made(**wrong)
        with pytest.raises(ValueError, match="kinds has 'outputs'"):  # not when training begins
            made(kinds=["outputs"])
    path = tmp_path / "watch.toml"
    path.write_text(f"""
        out = "{tmp_path / "run"}"
        kinds = ["output", "param_grad", "update"]
        exclude = ["*attn*"]
        every = 2
        max_bytes = 10_000_000
        rules = ["non-finite"]
        channel_bins = {{type = "linear", bins = 4, lo = -1.0, hi = 1.0}}
    """)
    fit_transformers(tmp_path, [transformers.WatchCallback(**load_config(path))])
    run = open_run(tmp_path / "run")
    assert run.steps == [2, 4, 6]
    assert ("transformer.h.0.ln_1", "output") in run[4]
    assert ("transformer.h.0.ln_1.weight", "update") in run[4]
    assert not any("attn" in name for name, _ in run[4])


def test_accelerate_takes_the_arguments_of_watch(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from hookstats.integrations.accelerate import watch

    accelerator = accelerate.Accelerator(cpu=True, project_dir=str(tmp_path))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, message in [
        ({"evry": 1}, "evry = 1; did you mean 'every'.: expected arguments of watch, kinds"),
        ({"kinds": ["outputs"]}, "kinds has 'outputs': .*; did you mean 'output'."),
    ]:
        with pytest.raises(ValueError, match=message):
            watch(accelerator, model, optimizer, **wrong)
    assert list(tmp_path.iterdir()) == []


def fit_trl(out: Path, callbacks: list[Any]) -> Any:
    pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"w{i}": i for i in range(30)} | {"[UNK]": 30, "[EOS]": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    texts = [" ".join(f"w{(7 * i + j) % 30}" for j in range(8)) for i in range(16)]
    arguments = SFTConfig(
        output_dir=str(out),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        max_length=16,
    )
    trainer = SFTTrainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
        ),
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def test_trl(tmp_path: Path) -> None:
    plain = fit_trl(tmp_path / "plain", [])
    from hookstats.integrations.transformers import WatchCallback

    watched = fit_trl(tmp_path / "watched", [WatchCallback()])
    assert same(plain.model.state_dict(), watched.model.state_dict())
    run = open_run(tmp_path / "watched" / "hookstats")
    assert run.closed
    assert run.steps == [1, 2, 3, 4]
    assert run[4]["", "input.input_ids"].count.sum() == 2 * 2 * 9  # eight words and the end
    losses = [entry["loss"] for entry in plain.state.log_history if "loss" in entry]
    assert run.scalars["loss"].values.tolist() == losses


def test_lightning_shows_the_graph_of_its_loss(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from hookstats.integrations.lightning import WatchCallback

    callback = WatchCallback(tmp_path / "run", rules=LossGraph(action=lambda alert: None))
    fit_lightning(tmp_path, [callback], shard=lambda module: module.first.pop(1))
    (alert,) = open_run(tmp_path / "run").alerts
    assert "linear layers with no activation between them" in alert.message


def test_lightning(tmp_path: Path) -> None:
    _, plain = fit_lightning(tmp_path / "plain", [])
    from hookstats.integrations.lightning import WatchCallback

    trainer, watched = fit_lightning(tmp_path, [WatchCallback()])
    assert same(plain.state_dict(), watched.state_dict())
    path = Path(trainer.log_dir, "hookstats")
    run = open_run(path)
    assert run.closed
    assert run.steps == [0, 1, 2, 3]
    assert run[1]["last", "output"].count.sum() == 8  # of two batches
    assert max(run[step]["first.0", "output"].amax.max() for step in run) < 100
    assert skipped(run, "last")["evaluation"] == 16
    assert run.scalars["loss"].values == pytest.approx(run.scalars["train_loss"].values)
    assert run.scalars["mean_loss"].values == pytest.approx(run.scalars["train_loss"].values)
    assert run.scalars["mean_loss_step"].steps.tolist() == [0, 1, 2, 3]
    # Of validation and of the epoch once each, in the step before.
    assert run.scalars["val_loss"].steps.tolist() == [1, 3]
    assert run.scalars["val_loss"].values[1] == trainer.callback_metrics["val_loss"].item()
    assert run.scalars["mean_loss_epoch"].steps.tolist() == [3]
    with Path(trainer.log_dir, "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["hookstats/grad_norm"]]
    assert [row["step"] for row in rows] == ["1", "3"]
    for row in rows:
        norm = run[int(row["step"])].scalars["grad_norm"]
        assert float(row["hookstats/grad_norm"]) == pytest.approx(norm)
    checkpoint = str(tmp_path / "last.ckpt")
    trainer.save_checkpoint(checkpoint)
    fit_lightning(tmp_path, [WatchCallback()], resume=checkpoint, epochs=2)
    assert open_run(path).steps == list(range(8))


def test_lightning_with_several_optimizers(tmp_path: Path) -> None:
    _, plain = fit_lightning(tmp_path / "plain", [], manual=True)
    from hookstats.integrations.lightning import WatchCallback

    callback = WatchCallback(out=tmp_path / "run", every=4)
    trainer, watched = fit_lightning(tmp_path, [callback], manual=True)
    assert same(plain.state_dict(), watched.state_dict())
    run = open_run(tmp_path / "run")
    assert trainer.global_step == 16
    assert run.steps == [0, 4, 8, 12]
    assert run.scalars["loss"].steps.tolist() == list(range(0, 16, 2))
    assert ("first.0.weight", "param_grad") in run[4]
    assert ("last.weight", "param_grad") in run[4]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_lightning_in_other_precisions(tmp_path: Path, precision: Any) -> None:
    options = {"precision": precision}
    _, plain = fit_lightning(tmp_path / "plain", [], trainer=options)
    from hookstats.integrations.lightning import WatchCallback

    _, watched = fit_lightning(tmp_path, [WatchCallback(out=tmp_path / "run")], trainer=options)
    assert same(plain.state_dict(), watched.state_dict())
    assert plain.losses == watched.losses
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3]
    dtypes = {site.dtype for site in run[3].sites if site.kind == "output"}
    assert dtypes == {"float64" if precision == "64-true" else "bfloat16"}
    assert run[3]["last", "output"].count.sum() == 8


@pytest.mark.parametrize(("manual", "scale"), [(False, 2.0**18), (False, 2.0**20), (True, 2.0**20)])
def test_lightning_where_the_loss_scaler_skips_steps(
    tmp_path: Path, manual: bool, scale: float
) -> None:
    """The first steps overflow, or all; each is a step, as the Trainer counts them."""
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision

    from hookstats.integrations.lightning import WatchCallback

    def fit(out: Path, callbacks: list[Any]) -> tuple[Any, Any, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
        return scaler, *fit_lightning(out, callbacks, manual=manual, trainer={"plugins": plugins})

    _, _, plain = fit(tmp_path / "plain", [])
    scaler, trainer, watched = fit(tmp_path, [WatchCallback(out=tmp_path / "run", rules=())])
    assert same(plain.state_dict(), watched.state_dict())
    assert scaler.get_scale() < scale
    run = open_run(tmp_path / "run")
    assert run.steps == list(range(0, trainer.global_step, 2 if manual else 1))
    for record in map(run.__getitem__, run):
        assert record["last", "output"].count.sum() == (4 if manual else 8)
    assert run.scalars["loss"].steps.tolist() == run.steps
    skipped = [step for step in run if ("last.weight", "param_grad") not in run[step]]
    assert skipped == run.steps[: len(skipped)]
    assert skipped
    assert (len(skipped) == len(run.steps)) == (not manual and scale > 2.0**18)


def test_lightning_closes_the_run_of_a_training_that_fails(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from hookstats.integrations.lightning import WatchCallback

    callback = WatchCallback(out=tmp_path / "run")
    with pytest.raises(ValueError, match="of the training"):
        fit_lightning(tmp_path, [callback], fails_at=5)
    run = open_run(tmp_path / "run")
    assert run.closed
    assert run.steps == [0, 1]


def test_accelerate(tmp_path: Path) -> None:
    plain, _ = fit_accelerate(tmp_path, watched=False)
    watched, tracker = fit_accelerate(tmp_path, watched=True)
    assert same(plain.state_dict(), watched.state_dict())
    run = open_run(tmp_path / "hookstats")
    assert run.steps == [0, 1, 2, 3]
    assert run[0]["0", "output"].count.sum() == 2 * 2 * 8
    assert list(tracker.logged) == [0, 2]
    for step, values in tracker.logged.items():
        expected = {f"hookstats/{name}": x for name, x in run.scalars.at(step).items()}
        assert values == pytest.approx(expected)
    fit_accelerate(tmp_path, watched=True, resumed=True)
    assert open_run(tmp_path / "hookstats").steps == list(range(8))
