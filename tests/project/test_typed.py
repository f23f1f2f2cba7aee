"""A user's program over the whole public API passes mypy --strict and pyright."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

import hookstats

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


def double(output: Tensor) -> Tensor:
    return 2 * output


def post(incident: hs.rules.Incident) -> None:
    print(incident.message, incident.cause.advice, len(incident.consequences))


def log(values: dict[str, float], step: int) -> None:
    print(values, step)


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
    sinks=[hs.sinks.JSONL("runs/a.jsonl"), hs.sinks.Scalars(log)],
    rules=[
        Large(action=tell),
        hs.rules.NonFinite(action="raise"),
        hs.rules.Loss,
        "dropout",
        post,
        hs.actions.wandb,
        hs.actions.Slack("https://example.org"),
    ],
) as watch:
    for _ in range(3):
        with watch.phase("train"):
            loss = loss_of(hs.observe("logits", model(x)), y)
            hs.observe("heads", lambda: hs.attention(x, x))
        watch.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    latest: hs.StepRecord = watch.latest
    rms: Tensor = latest["0", "output"].rms
    coverage: hs.Coverage = watch.coverage()
    messages: list[str] = [incident.message for incident in watch.incidents]

other: hs.Watch = hs.watch({"a": model}, [optimizer], out="s3://bucket/a", reduce=hs.Reduce())
configured = hs.watch(model, **hs.load_config("watch.toml"))

run: hs.Run = hs.open_run("runs/a")
series: hs.Series = run["0", "output"]
of_one: hs.SiteSeries = series["0", "output"]
record: hs.StepRecord = run[0]
comparison: hs.RunComparison = hs.compare("runs/a", "runs/a")
stats: hs.ChannelStats = hs.channel_stats(x, channel_dim=1, bins=hs.LogBins())
alerts: list[hs.rules.Alert] = hs.rules.replay(run, [hs.rules.NonFinite()])
traced: hs.Trace = hs.trace(model, x)
called: hs.Call = traced.calls[0]
tensor: hs.TracedTensor | None = called.output
whole: hs.Histogram | None = stats.hist
with hs.capture(model, "0", kinds=("output",)) as captured:
    model(x)
kept: hs.Capture = captured
first: hs.CapturedCall = kept.calls("0")[0]
gradients: hs.TensorCapture = hs.capture(x.requires_grad_())
dead: Tensor = hs.insight.dead(stats)
picture = hs.pictures.grid(captured["0", "output"][0])
try:
    edited: hs.Edit = hs.edit(model, double)
except hs.EditError:
    raise
print(hs.__version__, other, configured, of_one, tensor, whole, first, gradients, dead, picture)
print(series, record, comparison, stats, alerts, traced, captured, rms, coverage, messages, edited)
"""


COMMANDS = {
    "mypy": ("--strict", "--cache-dir", ".cache", "program.py"),
    "pyright": ("--pythonpath", sys.executable, "program.py"),
}


def test_the_program_has_every_public_name() -> None:
    assert set(re.findall(r"\bhs\.(\w+)", PROGRAM)) == set(hookstats.__all__)


@pytest.mark.full
@pytest.mark.parametrize("checker", COMMANDS)
def test_a_users_program_over_the_public_api_is_typed(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}')
    done = subprocess.run(
        [sys.executable, "-m", checker, *COMMANDS[checker]],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
