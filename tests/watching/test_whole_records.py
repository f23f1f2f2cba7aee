"""The statistics of whole tensors come with a step: nobody who asks for them merges any."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import hookstats as hs
from hookstats.insight import gradient_to_weight, growth, per_tensor
from hookstats.records.record import StepRecord
from hookstats.records.summary import summarise
from hookstats.rules import default_rules
from hookstats.sinks import JSONL
from hookstats.sinks.charts import SCALARS, charts
from hookstats.stats.merge import merge


def test_rules_sinks_and_a_writer_merge_nothing(tmp_path: Path) -> None:
    calls: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    def asks_for_all(record: StepRecord) -> None:
        charts(record, SCALARS, 64)
        summarise(record)
        growth(record)
        gradient_to_weight(record)
        per_tensor(record, [0])

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    threading.setprofile(profile)  # of the recorder, which starts now
    try:
        w = hs.watch(
            model,
            optimizer,
            out=tmp_path / "run",
            bins=hs.LogBins(),
            rules=default_rules(),
            sinks=[JSONL(tmp_path / "a.jsonl"), JSONL(tmp_path / "b.jsonl"), asks_for_all],
        )
        for _ in range(5):
            model(torch.randn(16, 4)).sum().backward()
            optimizer.step()
        w.close()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert sys.getprofile() is None
    assert w.coverage().failures == {}
    assert len(hs.open_run(tmp_path / "run")) == 5
    assert calls[asks_for_all.__code__] == 5
    assert calls[merge.__code__] == 0
