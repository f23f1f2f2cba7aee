"""Tiny training runs of trainers, and a program that does one of them on each rank.

python -m support.trainers transformers|lightning|fsdp2|tp|accelerate FOLDER [watched]

fsdp2 and tp are Lightning's ModelParallelStrategy. The program leaves the losses and a digest of
the weights in FOLDER/result-RANK, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit_transformers(out: Path, callbacks: list[Any], **options: Any) -> Any:
    """options: resume, a checkpoint; arguments of TrainingArguments."""
    pytest.importorskip("accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    resume = options.pop("resume", None)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    model = GPT2LMHeadModel(config)
    data = [
        {"input_ids": torch.randint(32, (8,)), "labels": torch.randint(32, (8,))} for _ in range(16)
    ]
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def fit_lightning(
    out: Path, callbacks: list[Any], *, manual: bool = False, **options: Any
) -> tuple[Any, Any]:
    """options: fails_at, a batch; epochs; resume, a checkpoint; trainer, arguments of its own;
    shard, what is to be done with the module once there is a mesh."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    losses: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual
            self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
            self.last = nn.Linear(8, 1)

        def configure_model(self) -> None:
            options.get("shard", id)(self)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.last(self.first(batch[0])).square().mean()
            self.log("train_loss", loss)
            self.log("mean_loss", loss, on_step=True, on_epoch=True)
            losses.append(loss.item())
            if index == options.get("fails_at"):
                raise ValueError("of the training")
            if manual:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.last(self.first(1e3 * batch[0])).square().mean())

        def configure_optimizers(self) -> Any:
            if manual:
                return [torch.optim.SGD(m.parameters(), lr=0.1) for m in (self.first, self.last)]
            return torch.optim.Adam(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    module = Module()
    loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=CSVLogger(str(out)),
        log_every_n_steps=2,
        val_check_interval=4,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=options.get("epochs", 1),
        accumulate_grad_batches=1 if manual else 2,
        **options.get("trainer", {}),
    )
    trainer.fit(module, loader, loader, ckpt_path=options.get("resume"))
    module.losses = losses
    return trainer, module


class Tracker:
    """What an Accelerator's trackers get."""

    def __init__(self) -> None:
        self.logged: dict[int, dict[str, float]] = {}
        self.losses: list[float] = []

    def __call__(self, values: dict[str, float], step: int) -> None:
        self.logged[step] = values


def fit_accelerate(
    out: Path, *, watched: bool, resumed: bool = False, loads: bool = False
) -> tuple[Any, Tracker]:
    """Resumed runs go on from what others saved; the losses are in the tracker.

    loads: whether the last checkpoint is loaded once the watch is closed.
    """
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=2, project_dir=str(out)
    )
    accelerator.log = tracker = Tracker()
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer: Any = torch.optim.Adam(model.parameters())
    loader: Any = DataLoader(torch.randn(16, 4), batch_size=2)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    w = None
    if watched:
        from hookstats.integrations.accelerate import watch

        w = watch(accelerator, model, optimizer, log_every=2, append=resumed)
    if resumed:
        accelerator.load_state(str(out / "state"))
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            tracker.losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            if w is not None:
                w.log(loss=loss)
    if watched and not resumed:
        accelerator.save_state(str(out / "state"))
    if w is not None:
        w.close()
    if loads:
        accelerator.load_state(str(out / "state"))
    return accelerator.unwrap_model(model), tracker


def on_transformers(out: Path, *, watched: bool) -> tuple[nn.Module, list[float]]:
    """Watched, the training is resumed once more from the checkpoint of its third step."""
    from hookstats.integrations.transformers import WatchCallback

    callbacks = [WatchCallback()] if watched else []
    trainer = fit_transformers(out, callbacks, ddp_backend="gloo")
    if watched:
        checkpoint = str(out / "checkpoint-3")
        again = fit_transformers(out, [WatchCallback()], ddp_backend="gloo", resume=checkpoint)
        assert all(map(torch.equal, trainer.model.parameters(), again.model.parameters()))
    return trainer.model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def on_lightning(out: Path, *, watched: bool) -> tuple[nn.Module, list[float]]:
    from hookstats.integrations.lightning import WatchCallback

    callbacks = [WatchCallback()] if watched else []
    ranks = {"devices": int(os.environ["WORLD_SIZE"]), "strategy": "ddp"}
    _, module = fit_lightning(out, callbacks, trainer=ranks)
    return module, module.losses


def by_fsdp2(module: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = module.device_mesh["data_parallel"]
    fully_shard(module.first[0], mesh=mesh)
    fully_shard(module.last, mesh=mesh)


def by_tp(module: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"first.0": ColwiseParallel(), "last": RowwiseParallel()}
    parallelize_module(module, module.device_mesh["tensor_parallel"], plan)


def on_sharded_lightning(out: Path, *, tp: bool, watched: bool) -> tuple[nn.Module, list[float]]:
    from lightning.pytorch.strategies import ModelParallelStrategy

    from hookstats.integrations.lightning import WatchCallback

    callbacks = [WatchCallback()] if watched else []
    size = int(os.environ["WORLD_SIZE"])
    strategy = ModelParallelStrategy(
        data_parallel_size=1 if tp else size,
        tensor_parallel_size=size if tp else 1,
        process_group_backend="gloo",
    )
    arguments = {"devices": size, "strategy": strategy}
    shard = by_tp if tp else by_fsdp2
    _, module = fit_lightning(out, callbacks, trainer=arguments, shard=shard)
    return module, module.losses


def on_accelerate(out: Path, *, watched: bool) -> tuple[nn.Module, list[float]]:
    model, tracker = fit_accelerate(out, watched=watched)
    return model, tracker.losses


def main(trainer: str, folder: str, *options: str) -> None:
    out = Path(folder)
    train: Any = {
        "transformers": on_transformers,
        "lightning": on_lightning,
        "fsdp2": partial(on_sharded_lightning, tp=False),
        "tp": partial(on_sharded_lightning, tp=True),
        "accelerate": on_accelerate,
    }[trainer]
    model, losses = train(out, watched="watched" in options)
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    weights = b"".join(p.detach().numpy().tobytes() for p in whole)
    found = {"losses": losses, "digest": hashlib.md5(weights).hexdigest()}
    (out / f"result-{os.environ['RANK']}").write_text(json.dumps(found))
    torch.distributed.barrier()  # no rank leaves while another still hears from it
    torch.distributed.destroy_process_group()
    if trainer == "tp":  # at its exit torch 2.13 aborts now and then, in unwatched training, too
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
