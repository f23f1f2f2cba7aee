"""hookstats check: a script runs up to its first backward, and its models are checked there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.commands import call
from torch import nn

import hookstats as hs

SCRIPT = """
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=batch_first), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


mode = sys.argv[1]
if mode == "no training":
    sys.exit(0)
if mode == "own error":
    raise KeyError("of the script")
model = Net(batch_first=mode != "leak")
called = model
if mode == "wrapped":
    called = torch.compile(nn.DataParallel(model), backend="eager")
if mode == "watched":
    import hookstats as hs
optimizer = torch.optim.SGD((model.head if mode == "frozen" else model).parameters(), lr=0.1)
if mode == "watched":
    out = next(iter(sys.argv[2:]), None)
    watch = hs.watch(model, optimizer, out=out, **dict.fromkeys(sys.argv[3:], True))
with torch.no_grad():
    called(torch.ones(2, 5, 8))
try:
    loss = F.cross_entropy(called(torch.randn(6, 5, 8)), torch.randint(3, (6,)))
    loss.backward()
except Exception:
    pass
optimizer.step()
print("went on")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["hookstats"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    "mode", ["sound", "watched", pytest.param("wrapped", marks=pytest.mark.check)]
)
def test_a_sound_script_ends_with_0_before_its_first_step(script: Path, mode: str) -> None:
    result = call("check", str(script), mode)
    assert result.code == 0, result.err
    assert result.out.startswith("hookstats check: Net, ")
    assert "went on" not in result.out


@pytest.mark.parametrize("options", [(), ("overwrite",), ("append",)], ids=str)
def test_a_script_that_watches_leaves_its_run_as_it_is(
    script: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    with hs.watch(nn.Linear(8, 3), out=run):
        pass
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = call("check", str(script), "watched", str(run), *options)
    assert result.code == 0, result.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_a_leak_ends_with_1(script: Path) -> None:
    result = call("check", str(script), "leak")
    assert result.code == 1
    assert "error: samples leak into each other in 'rnn'" in result.out
    assert call("check", "--batch-dim", "none", str(script), "leak").code == 0


def test_parameters_in_no_optimizer_are_told(script: Path) -> None:
    result = call("check", str(script), "frozen")
    assert result.code == 1
    assert "4 of 6 parameters are in no optimizer: 'rnn.weight_ih_l0'" in result.out


def test_a_script_that_trains_nothing_is_an_error(script: Path) -> None:
    result = call("check", str(script), "no training")
    assert result.code == 2
    assert "it ended, and trained no model" in result.err
    assert call("check", str(script.with_name("none.py"))).err.endswith("no such file\n")


def test_errors_of_the_script_are_its_own(script: Path) -> None:
    with pytest.raises(KeyError, match="of the script"):
        call("check", str(script), "own error")
