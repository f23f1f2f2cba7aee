"""A user's program over the public API passes mypy --strict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

PROGRAM = """
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

import hookstats as hs


class Large(hs.rules.Rule):
    def check(
        self, record: hs.StepRecord, history: hs.rules.History
    ) -> Iterable[hs.rules.Alert]:
        for site, info in enumerate(record.sites):
            if float(record[info.name, info.kind].per_tensor().rms) > 1e3:
                yield self.alert(record, site, "is large", 1.0)


def tell(alert: hs.rules.Alert) -> None:
    print(alert.message, alert.site, alert.severity)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target)


def double(call: hs.Call, output: Tensor) -> Tensor:
    return 2 * output


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)

findings: tuple[hs.Finding, ...] = hs.check(model, (x, y), loss_of, optimizer=optimizer)
for finding in findings:
    print(finding.message, finding.where, finding.advice)

with hs.watch(
    model,
    optimizer,
    out=Path("runs/a"),
    kinds=("output", "param_grad"),
    include=["0", nn.Linear],
    bins=hs.LogBins(sample=8),
    channel_bins=hs.LinearBins(64, lo=-4.0, hi=4.0),
    max_bytes=10 << 30,
    sinks=[hs.sinks.JSONL("runs/a.jsonl")],
    rules=[Large(action=tell), hs.rules.NonFinite(action="raise"), hs.rules.Loss, "dropout"],
) as watch:
    for _ in range(3):
        loss = loss_of(model(x), y)
        watch.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    latest: hs.StepRecord = watch.latest
    rms: Tensor = latest["0", "output"].rms
    coverage: hs.Coverage = watch.coverage()
    messages: list[str] = [incident.message for incident in watch.incidents]

run: hs.Run = hs.open_run("runs/a")
series = run["0", "output"]
record: hs.StepRecord = run[0]
comparison: hs.RunComparison = hs.compare("runs/a", "runs/a")
stats: hs.ChannelStats = hs.channel_stats(x, channel_dim=1, bins=hs.LogBins())
alerts: list[hs.rules.Alert] = hs.rules.replay(run, [hs.rules.NonFinite()])
traced: hs.Trace = hs.trace(model, x)
with hs.capture(model, "0", kinds=("output",)) as captured:
    model(x)
print(series, record, comparison, stats, alerts, traced, captured, rms, coverage, messages)
"""


@pytest.mark.full
def test_a_users_program_over_the_public_api_is_typed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "program.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
