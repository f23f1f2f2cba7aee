"""A process that reads a run first, without torch, and trains then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.modules import network
from torch.optim import SGD

import hookstats as hs

READ_THEN_TRAIN = """
import sys
from pathlib import Path
import hookstats as hs

out = Path(sys.argv[1])
run = hs.open_run(out / "first")
assert run.steps == [0]
assert "torch" not in sys.modules
import torch
from hookstats.stats import histogram, state
assert run[0]["0", "output"].tensor_hist.quantile(0.5).shape == (1,)
assert state.torch is histogram.torch is torch
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
bins = run.bins
with hs.watch(model, bins=bins, channel_bins=bins, out=out / "second", rules=()) as watch:
    torch.compile(model, fullgraph=True, backend="aot_eager")(torch.ones(2, 3)).sum().backward()
    watch.step()
    assert int(watch.latest["1", "output"].count.sum()) == 8
    assert int(watch.latest["1", "output"].hist.counted.sum()) == 8
"""


@pytest.mark.check
def test_modules_get_torch_itself_once_it_is_used(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, out=tmp_path / "first", rules=()):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    command = (sys.executable, "-W", "error::RuntimeWarning", "-c", READ_THEN_TRAIN, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
