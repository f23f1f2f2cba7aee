"""A tiny training of torchtitan on the CPU, as a program: rank 0 prints its results as JSON.

[torchrun ...] python -m support.titan FOLDER [watched] [compiled] [tp]

Several ranks shard the model by FSDP2, or by tensor parallelism.

torchtitan trains on accelerators. On the CPU it lacks a device to choose, what a device's memory
says, a barrier by device, and the attention of its language models, whose backward needs a GPU.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule

_CPU: Any = torch.cpu
torch._utils._get_available_device_type = lambda: "cpu"
_CPU.get_device_name = lambda device=None: "cpu"
_CPU.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1)
_CPU.memory_stats = lambda device=None: collections.defaultdict(int)
_CPU.reset_peak_memory_stats = _CPU.empty_cache = lambda device=None: None
if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import utils  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import decoder_vocab_size  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

STEPS = 4
utils.set_pg_timeouts = lambda *args, **kwargs: None
time.sleep = lambda seconds: None


class Tokens(BaseDataLoader):  # type: ignore[misc]
    """Token ids that its state reproduces."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Nothing."""

    def __init__(
        self, config: Any, *, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        self.size = local_batch_size, seq_len + 1
        self.first_seed = 1000 * dp_rank
        self.at = 0

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            generator = torch.Generator().manual_seed(self.first_seed + self.at)
            self.at += 1
            ids = torch.randint(256, self.size, generator=generator)
            yield {"input": ids[:, :-1]}, ids[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state.get("at", 0)


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    """There is no text."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        """Nothing."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        return []

    def decode(self, *args: Any, **kwargs: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return 256


def configure(folder: str, *, compiled: bool, tp: bool) -> Any:
    spec = model_registry("debugmodel")
    del spec.model.layers[2:]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec,
        dump_folder=folder,
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        training=TrainingConfig(
            local_batch_size=2, seq_len=32, steps=STEPS, disable_cuda_graphs=True
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=int(os.environ["WORLD_SIZE"]) if tp else 1,
            spmd_backend="partial_dtensor",  # the others need a newer torch
        ),
        dataloader=Tokens.Config(),
        tokenizer=NoTokenizer.Config(),
        metrics=MetricsProcessor.Config(log_freq=2),
        checkpoint=CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False),
        compile=CompileConfig(enable=compiled, components=["model"], backend="aot_eager"),
        activation_checkpoint=None,
    )


def tiny() -> Any:
    """For torchtitan's command line: --module support.titan --config tiny."""
    return configure("outputs", compiled=False, tp=False)


def main(folder: str, *options: str) -> None:
    torch.manual_seed(0)
    trainer = configure(folder, compiled="compiled" in options, tp="tp" in options).build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale what it sums
    if "watched" in options:
        from hookstats.integrations.torchtitan import watch

        watch(trainer)
    logged: list[Any] = []
    trainer.metrics_processor.logger.log = lambda values, step: logged.append([step, values])
    trainer.train()
    state = trainer.model_parts[0].state_dict()
    whole = [getattr(x, "full_tensor", lambda x=x: x)() for x in state.values()]
    digest = hashlib.md5(b"".join(x.detach().numpy().tobytes() for x in whole)).hexdigest()
    trainer.close()
    distributed.destroy_process_group()
    if os.environ["RANK"] == "0":
        print(json.dumps({"digest": digest, "logged": logged}))


if __name__ == "__main__":
    main(*sys.argv[1:])
