"""The table of trackers in docs/guides/notify.md, with the real ones: what they have is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.recorded import train

from hookstats import sinks

pytestmark = [
    pytest.mark.full,
    # Of the trackers.
    pytest.mark.filterwarnings("default"),
]

PAGE = (ROOT / "docs" / "guides" / "notify.md").read_text()
FUNCTIONS = dict(re.findall(r"^\| ([\w ]+) \| `(lambda .*)` \|$", PAGE, re.MULTILINE))


def mlflow(path: Path) -> tuple[dict[str, Any], Any]:
    module: Any = pytest.importorskip("mlflow")
    module.set_tracking_uri(f"sqlite:///{path}/mlflow.db")
    run = module.start_run()

    def read(name: str) -> dict[int, float]:
        module.end_run()
        history = module.MlflowClient().get_metric_history(run.info.run_id, name)
        return {one.step: one.value for one in history}

    return {"mlflow": module}, read


def prometheus(path: Path) -> tuple[dict[str, Any], Any]:
    module: Any = pytest.importorskip("prometheus_client")
    registry = module.CollectorRegistry()
    gauge = module.Gauge("training", "Numbers of the training", ["name"], registry=registry)

    def read(name: str) -> dict[int, float]:
        return {3: registry.get_sample_value("training", {"name": name})}

    return {"gauge": gauge}, read


def opentelemetry(path: Path) -> tuple[dict[str, Any], Any]:
    module: Any = pytest.importorskip("opentelemetry.sdk.metrics")
    export: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    meter = module.MeterProvider([reader]).get_meter("hookstats")

    def read(name: str) -> dict[int, float]:
        found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0]
        values = {one.attributes["name"]: one.value for one in found.data.data_points}
        return {3: values[name]}

    return {"gauge": meter.create_gauge("training")}, read


SET_UP = {"MLflow": mlflow, "Prometheus": prometheus, "OpenTelemetry": opentelemetry}


@pytest.mark.parametrize("tracker", SET_UP)
def test_a_tracker_has_the_numbers(tracker: str, tmp_path: Path) -> None:
    names, read = SET_UP[tracker](tmp_path)
    records = train(sinks.Scalars(eval(FUNCTIONS[tracker], names)))
    for name in ("grad_norm", "lr/0"):
        expected = {record.step: record.scalars[name] for record in records}
        found = read(name)
        assert found
        assert found == pytest.approx({step: expected[step] for step in found})
