"""hookstats run: unmodified scripts, watched; their results keep every bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.scripts import results, run

from hookstats.runs.run import open_run

TRAINING = """
import hashlib, os, sys
import torch
from torch import nn

mode = sys.argv[1]
ranks = int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
average = torch.optim.swa_utils.AveragedModel(model)
with torch.no_grad():
    model(torch.randn(2, 4))  # before the optimizer
if ranks > 1:
    torch.distributed.init_process_group("gloo")
if mode == "fsdp":
    from torch.distributed.fsdp import fully_shard
    fully_shard(model[0])
    fully_shard(model)
called = model
if mode == "in place":
    model.compile(backend="aot_eager")
if mode == "function":
    called = torch.compile(lambda x: model(x), backend="aot_eager")
if mode == "part":
    model[0] = torch.compile(model[0], backend="aot_eager")
if mode in ("in place", "function", "part"):
    called(torch.randn(3, 4)).sum().backward()  # compiled before there is an optimizer
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
if mode == "ddp":
    called = nn.parallel.DistributedDataParallel(model)
if mode == "compiled":
    called = torch.compile(model, backend="aot_eager", fullgraph=True)
if mode == "gan":
    critic = nn.Linear(1, 1)
    optimizers.append(torch.optim.Adam(critic.parameters()))
for step in range(5):
    for optimizer in optimizers:
        optimizer.zero_grad()
    out = called(torch.randn(3, 4))
    out = critic(out) if mode == "gan" else out
    out.square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    if mode in ("plain", "ddp", "gan"):
        average.update_parameters(model)
    model.eval()
    with torch.no_grad():
        model(1e3 * torch.ones(2, 4))
    model.train()
if mode == "later":
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
digest = hashlib.md5(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()
with open(f"result-{os.environ.get('RANK', 0)}", "w") as file:
    print(digest, sys.argv[1:], __name__, file=file)
if ranks > 1:
    torch.distributed.destroy_process_group()
if mode == "raises":
    raise ValueError("of the script")
if mode == "exits":
    sys.exit(3)
"""

TRANSFORMERS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
data = [{"input_ids": row, "labels": row} for row in torch.randint(32, (16, 8))]
arguments = TrainingArguments(
    output_dir="out", max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    logging_steps=1, eval_strategy="steps", eval_steps=2, report_to=[], use_cpu=True,
    torch_compile=sys.argv[1] == "compiled", torch_compile_backend="aot_eager",
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data[:4])
trainer.train()
names = ("loss", "eval_loss", "grad_norm")
logged = [[entry.get(name) for name in names] for entry in trainer.state.log_history]
with open("result-0", "w") as file:
    print(logged, file=file)
"""

LIGHTNING = """
import lightning, torch
from torch import nn

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.losses = []

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.net(1e3 * batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

lightning.seed_everything(0)
module = Module()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
trainer.fit(module, loader, loader)
with open("result-0", "w") as file:
    print(module.losses, file=file)
"""


CHILDREN = """
import sys, tempfile
import torch
from torch import distributed, nn

def train(rank, rendezvous):
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(6, 4), batch_size=2, num_workers=1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in data:
        optimizer.zero_grad()
        model(batch + rank).square().mean().backward()
        optimizer.step()
    with open(f"result-{rank}", "w") as file:
        print([p.tolist() for p in model.parameters()], file=file)
    distributed.destroy_process_group()

class Rank(torch.multiprocessing.get_context("spawn").Process):
    def __init__(self, *args):
        super().__init__()
        self.args = args

    def run(self):
        train(*self.args)

if __name__ == "__main__":
    rendezvous = "file://" + tempfile.mktemp()
    if sys.argv[1] == "class":
        processes = [Rank(rank, rendezvous) for rank in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    else:
        torch.multiprocessing.start_processes(train, (rendezvous,), 2, start_method=sys.argv[1])
"""


ODD = """
import torch
from torch import nn

class Odd(nn.Linear):
    def parameters(self, recurse=True):
        raise RuntimeError("no parameters")

model = Odd(4, 1)
optimizer = torch.optim.SGD([model.weight], lr=0.1)
for _ in range(2):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


SEVERAL = """
import os
import torch
from torch import nn

os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")  # as Hydra does
assert os.path.samefile(__file__, "../training.py")

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()

torch.manual_seed(0)
for fold in range(3):
    model = nn.Sequential(nn.Linear(4, 2 + fold))
    train(model, 2)
train(model, 1)  # an optimizer of its own, but the same model
for _ in range(20):
    train(nn.Linear(4, 1), 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return path


def compare(script: Path, mode: str, ranks: int = 1) -> None:
    """Run a training unwatched and watched into "run"; the results must be equal."""
    code, errors = run(script, "training.py", mode, ranks=ranks, watched=False)
    if code != 0 and "terminate called without an active exception" in errors:
        # Torch alone, of which a rank was once seen to end so: a thread that nobody had joined.
        code, errors = run(script, "training.py", mode, ranks=ranks, watched=False)
    assert code == 0, errors
    expected = results(script)
    assert len(expected) == ranks
    code, errors = run(script, "-o", "run", "training.py", mode, ranks=ranks)
    assert code == 0, errors
    assert results(script) == expected
    assert errors.count(": hookstats show run") == 1
    of_function = errors.count("hookstats run: no call of the model was seen")
    assert of_function == (mode == "function")
    assert errors.count("hookstats run: ") == of_function


@pytest.mark.check
def test_a_plain_loop(script: Path) -> None:
    compare(script, "plain")
    recorded = open_run(script.parent / "run")
    assert recorded.steps == [0, 1, 2, 3, 4]
    assert recorded.header["modules"].keys() == {"0", "1", "2"}
    assert max(recorded[step]["0", "output"].amax.max() for step in recorded) < 100
    assert recorded.closed


@pytest.mark.check
@pytest.mark.parametrize("mode", ["compiled", "gan", "later"])
def test_other_loops(script: Path, mode: str) -> None:
    compare(script, mode)
    recorded = open_run(script.parent / "run")
    assert recorded.steps[:5] == [0, 1, 2, 3, 4]
    names = {name for name, kind in recorded[4] if kind == "output"}
    expected = {"0", "1", "2"}
    if mode == "gan":
        expected = {f"sequential.{name}" for name in expected} | {"linear"}
    assert names == expected
    if mode == "later":
        assert recorded.coverage is not None


@pytest.mark.check
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("in place", {"0", "1", "2"}),
        ("function", {"0", "1", "2"}),
        ("part", {"linear", "linear_1"}),
    ],
)
def test_code_that_was_compiled_before_the_optimizer_was_made(
    script: Path, mode: str, names: set[str]
) -> None:
    compare(script, mode)
    recorded = open_run(script.parent / "run")
    assert recorded.steps == [0, 1, 2, 3, 4][mode == "function" :]
    for record in map(recorded.__getitem__, recorded):
        assert {name for name, kind in record if kind == "output"} == names
        assert len([key for key in record if key[1] == "param_grad"]) == 4


@pytest.mark.check
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_ranks(script: Path, mode: str) -> None:
    compare(script, mode, ranks=2)
    recorded = open_run(script.parent / "run")
    assert recorded.ranks == [0, 1]
    for rank in (0, 1):
        assert recorded.of_rank(rank).steps == [0, 1, 2, 3, 4]
        assert ("0.weight", "param_grad") in recorded.of_rank(rank)[4]


@pytest.mark.check
@pytest.mark.parametrize("mode", ["plain", pytest.param("compiled", marks=pytest.mark.full)])
def test_a_trainer_of_transformers(script: Path, mode: str) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    script.write_text(TRANSFORMERS)
    compare(script, mode)
    recorded = open_run(script.parent / "run")
    assert recorded.steps == [0, 1, 2, 3]
    tokens = recorded[3]["transformer.h.0.ln_1", "output"].count.sum()
    assert tokens == 2 * 2 * 8 * 16  # of two micro-batches, and of no evaluation
    assert recorded[3]["", "input.input_ids"].count.sum() == 2 * 2 * 8
    assert ("transformer.h.0.attn.c_attn.weight", "param_grad") in recorded[3]


@pytest.mark.check
def test_a_trainer_of_lightning(script: Path) -> None:
    pytest.importorskip("lightning")
    script.write_text(LIGHTNING)
    compare(script, "plain")
    recorded = open_run(script.parent / "run")
    assert recorded.steps == [0, 1, 2, 3]
    assert recorded[3]["net.0", "output"].count.sum() == 4 * 8
    assert max(recorded[step]["net.0", "output"].amax.max() for step in recorded) < 100


def compare_children(script: Path, mode: str) -> None:
    """Run a training on two processes that the script starts, unwatched and watched."""
    code, errors = run(script, "training.py", mode, watched=False)
    assert code == 0, errors
    expected = results(script)
    assert len(expected) == 2
    code, errors = run(script, "--every", "2", "training.py", mode)
    assert code == 0, errors
    assert results(script) == expected
    assert "hookstats run: " not in errors
    assert errors.count(": hookstats show runs/training") == 1, errors
    recorded = open_run(script.parent / "runs" / "training")
    assert recorded.ranks == [0, 1]
    assert recorded.steps == [0, 2]
    assert recorded.header["grad_scale"] == 0.5


@pytest.mark.check
@pytest.mark.parametrize("how", ["spawn", "fork", pytest.param("class", marks=pytest.mark.full)])
def test_processes_that_a_script_starts(script: Path, how: str) -> None:
    script.write_text(CHILDREN)
    compare_children(script, how)
    recorded = open_run(script.parent / "runs" / "training")
    assert recorded[2]["0", "output"].count.tolist() == [2 * 2]


@pytest.mark.check
def test_a_trainer_of_lightning_on_two_ranks(script: Path) -> None:
    """By torchrun all ranks are recorded; where Lightning starts the second one, a line says so."""
    pytest.importorskip("lightning")
    parallel = 'max_epochs=2, devices=2, strategy="ddp",'
    text = LIGHTNING.replace("max_epochs=2,", parallel).replace("randn(8, 4)", "randn(16, 4)")
    script.write_text(text.replace('"result-0"', 'f"result-{trainer.global_rank}"'))
    compare(script, "ddp", ranks=2)
    recorded = open_run(script.parent / "run")
    assert recorded.ranks == [0, 1]
    assert recorded[2]["net.0", "output"].count.sum() == 2 * 4 * 8
    code, errors = run(script, "-o", "alone", "training.py")
    assert code == 0, errors
    assert open_run(script.parent / "alone").ranks == [0]
    assert (
        "hookstats run: 1 of 2 ranks recorded: to record all, start with "
        "`torchrun --nproc-per-node 2 -m hookstats run`\n"
    ) in errors


@pytest.mark.check
def test_accelerate_launches_it(script: Path) -> None:
    pytest.importorskip("accelerate")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1"]
    launch += ["--mixed_precision=no", "--dynamo_backend=no"]
    code, errors = run(
        script, "-o", "run", "training.py", "plain", launcher=[sys.executable, *launch]
    )
    assert code == 0, errors
    assert open_run(script.parent / "run").steps == [0, 1, 2, 3, 4]
    assert "hookstats: run: 5 steps, " in errors


@pytest.mark.check
def test_scripts_end_as_they_do(script: Path) -> None:
    (script.parent / "watch.toml").write_text('every = 2\nkinds = ["output"]')
    code, errors = run(script, "--config", "watch.toml", "training.py", "raises")
    assert code == 1
    assert errors.strip().endswith("ValueError: of the script")
    assert open_run(script.parent / "runs" / "training").steps == [0, 2, 4]
    code, errors = run(script, "--every", "4", "-m", "training", "exits", "--kinds", "mine")
    assert code == 3
    assert open_run(script.parent / "runs" / "training-1").steps == [0, 4]
    assert "['exits', '--kinds', 'mine'] __main__" in results(script)[0]


@pytest.mark.check
def test_a_script_sees_and_shows_what_it_would_under_python(script: Path) -> None:
    script.write_text("""
import sys
def fail():
    raise ValueError(sys.argv, __file__, __name__, __builtins__)
try:
    [][1]
except IndexError:
    fail()
""")
    code, expected = run(script, "training.py", "--lr", "1", watched=False)
    assert run(script, "training.py", "--lr", "1") == (
        code,
        f"hookstats run: no training was watched\n{expected}",
    )
    script.write_text("def fail(:")
    code, expected = run(script, "training.py", watched=False)
    assert run(script, "training.py")[1].endswith(f"\n{expected}")


@pytest.mark.check
def test_each_training_of_a_script_has_a_run_where_the_command_was_given(script: Path) -> None:
    script.write_text(SEVERAL)
    code, errors = run(script, "-o", "folds", "training.py")
    assert code == 0, errors
    lines = [line for line in errors.splitlines() if line.startswith("hookstats run: ")]
    assert lines == ["hookstats run: not watched: what is trained after the first 16 trainings"]
    assert errors.count(": hookstats show ") == 16
    for name, steps in (("folds", "2 steps"), ("folds-2", "3 steps"), ("folds-15", "1 step")):
        assert f"hookstats: {script.parent / name}: {steps}, " in errors
    for number, name in enumerate(("folds", "folds-1", "folds-2")):
        recorded = open_run(script.parent / name)
        assert recorded.closed
        assert recorded[1]["0", "output"].count.tolist() == [2] * (2 + number)
    code, errors = run(script, "-o", "numbered-{n}", "training.py")
    assert f"hookstats: {script.parent}/numbered-1: 2 steps, " in errors
    assert f"hookstats: {script.parent}/numbered-3: 3 steps, " in errors


@pytest.mark.check
def test_options_that_watch_refuses_are_said_before_the_script_begins(script: Path) -> None:
    for option, value, message in [
        ("--kinds", "outputs", "kinds has 'outputs': "),
        ("--config", "watch.toml", "rules = "),
    ]:
        (script.parent / "watch.toml").write_text('rules = ["losses"]')
        code, errors = run(script, option, value, "training.py", "plain")
        assert code == 2
        assert errors.startswith(f"hookstats run: error: {message}")
        assert results(script) == []


@pytest.mark.check
def test_what_cannot_be_watched_is_said(script: Path) -> None:
    code, errors = run(script, "--include", "nothing", "training.py", "plain")
    assert code == 0
    assert "hookstats run: watching failed: ValueError: include = " in errors
    assert "hookstats run: no training was watched" in errors
    (script.parent / "odd.py").write_text(ODD)
    code, errors = run(script, "odd.py")
    assert code == 0
    assert errors.splitlines() == [
        "hookstats run: looking for what is trained failed: RuntimeError: no parameters",
        "hookstats run: no training was watched",
    ]
    (script.parent / "idle.py").write_text("print(1)")
    code, errors = run(script, "idle.py")
    assert (code, errors) == (0, "hookstats run: no training was watched\n")
    for wrong in (["none.py"], ["--config", "none.toml", "idle.py"]):
        code, errors = run(script, *wrong)
        assert code == 2
        assert errors.startswith("hookstats run: error: ")
