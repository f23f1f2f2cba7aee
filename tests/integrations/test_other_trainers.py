"""The examples of docs/trainers/others.md, each with the real trainer where it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paths import ROOT

import hookstats as hs

pytestmark = [
    pytest.mark.full,
    # Of the trainers.
    pytest.mark.filterwarnings("default"),
]

PAGE = (ROOT / "docs" / "trainers" / "others.md").read_text()
SECTION = r"^## (\S+)\n(?:(?!^## ).)*?^```py\n(.*?)^```$"
EXAMPLES = dict(re.findall(SECTION, PAGE, re.DOTALL | re.MULTILINE))

COMMON = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookstats as hs

torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=8)
loss = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters())
"""

BEFORE = {
    "TRL": """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer as Trainer

words = {f"w{i}": i for i in range(30)} | {"[UNK]": 30, "[EOS]": 31}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16))
texts = [" ".join(f"w{(7 * i + j) % 30}" for j in range(8)) for i in range(16)]
data = Dataset.from_dict({"text": texts})
arguments = SFTConfig(
    output_dir="runs", max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True,
    bf16=False, max_length=16, disable_tqdm=True,
)

def SFTTrainer(*given, **options):
    return Trainer(*given, processing_class=tokenizer, **options)
""",
    "torchtune": """
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torchtune
from omegaconf import OmegaConf
from torchtune.models.llama3_2 import llama3_2

sys.path.append(str(Path(torchtune.__file__).parents[1] / "recipes"))  # instead of `tune cp`
from full_finetune_single_device import FullFinetuneRecipeSingleDevice

sizes = {
    "vocab_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "embed_dim": 16,
    "max_seq_len": 16, "intermediate_dim": 32,
}
rows = [[*range(i, i + 8)] for i in range(16)]
mine = sys.modules["mine"] = ModuleType("mine")
mine.tokens = lambda: SimpleNamespace(pad_id=0)
mine.data = lambda tokens: [{"tokens": row, "labels": row} for row in rows]
mine.saved = lambda **options: SimpleNamespace(
    load_checkpoint=lambda: {"model": llama3_2(**sizes).state_dict()},
    save_checkpoint=lambda *saved, **options: None,
)
log = "torchtune.training.metric_logging.DiskLogger"
config = OmegaConf.create({
    "output_dir": "out", "device": "cpu", "dtype": "fp32", "seed": 0, "epochs": 1, "shuffle": True,
    "batch_size": 2, "gradient_accumulation_steps": 2, "max_steps_per_epoch": None,
    "resume_from_checkpoint": False, "optimizer_in_bwd": False, "compile": False,
    "metric_logger": {"_component_": log, "log_dir": "out"},
    "model": {"_component_": "torchtune.models.llama3_2.llama3_2", **sizes},
    "tokenizer": {"_component_": "mine.tokens"},
    "dataset": {"_component_": "mine.data"},
    "checkpointer": {"_component_": "mine.saved"},
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3},
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
})
""",
    "stable-baselines3": "from stable_baselines3 import PPO",
    "ultralytics": """
from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics import YOLO

for part in ("images", "labels"):
    Path("data", part).mkdir(parents=True)
for i in range(4):
    pixels = np.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(f"data/images/{i}.png")
    Path(f"data/labels/{i}.txt").write_text("0 0.5 0.5 0.4 0.4")
data = {"path": str(Path("data").resolve()), "train": "images", "val": "images", "names": ["a"]}
Path("data.yaml").write_text(str(data))
options = {"batch": 2, "nbs": 2, "device": "cpu", "workers": 0, "amp": False, "plots": False}
""",
    "skorch": "from skorch import NeuralNetRegressor\nmodule = model",
    "ignite": "from ignite.engine import Events, create_supervised_trainer",
    "fastai": """
from fastai.data.core import DataLoaders
from fastai.learner import Callback, Learner
data = DataLoaders(loader, loader)
""",
}
"""What the reader has, and what the trainer is imported by."""

AFTER = {"torchtune": "recipe = Watched(config)\nrecipe.setup(config)\nrecipe.train()"}
"""What the reader's script does with it."""

NEEDS = {
    "TRL": ("trl", "accelerate", "datasets"),
    "torchtune": ("torchtune", "torchao", "datasets"),
    "stable-baselines3": ("stable_baselines3", "gymnasium"),
}

STEPS = {
    "TRL": ("runs/hookstats", [1, 2, 3, 4]),
    "torchtune": ("runs/tune", list(range(4))),
    "stable-baselines3": ("runs/ppo", list(range(8))),
    "ultralytics": ("runs/yolo", list(range(4))),
    "skorch": ("runs/skorch", [0, 1]),
    "ignite": ("runs/ignite", list(range(8))),
    "fastai": ("runs/fastai", list(range(8))),
}
"""Where the run is, and its steps."""


@pytest.mark.parametrize("trainer", EXAMPLES)
def test_the_example_records_each_step(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NEEDS.get(trainer, (trainer,)):
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    code = EXAMPLES[trainer]
    assert sum(bool(line) for line in code.splitlines()) <= 10
    names: dict[str, Any] = {}
    exec(COMMON + BEFORE[trainer] + "\n" + code + AFTER.get(trainer, ""), names)
    out, steps = STEPS[trainer]
    run = hs.open_run(out)
    assert run.closed
    assert run.steps == steps
    last = run[steps[-1]]
    kinds = {kind for _, kind in last}
    assert {"output", "grad_output", "param_grad"} <= kinds
    coverage = run.coverage
    assert coverage is not None
    assert coverage["failures"] == {}
    assert all(torch.isfinite(last[key].per_tensor().rms).all() for key in last)
