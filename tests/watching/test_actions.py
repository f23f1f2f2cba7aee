"""Actions of incidents: one message each, off the training's thread, and no secret anywhere."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modules import take_step
from torch import nn

import hookstats as hs
from hookstats.records.alerts import Incident
from hookstats.rules import actions

SECRET = "T0KEN"


class Server:
    """A web server that gives some answers in turn, then 200, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.location = ""
        self.hangs = threading.Event()
        self.hangs.set()  # cleared, requests wait
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == f"/services/{SECRET}"
                length = int(self.headers["Content-Length"])
                server.bodies.append(json.loads(self.rfile.read(length)))
                server.hangs.wait(20)
                self.send_response(server.answers.pop(0) if server.answers else 200)
                if server.location:
                    self.send_header("Location", server.location)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/services/{SECRET}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.hangs.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "DELAYS", (0.01, 0.02, 0.03))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Later(hs.rules.Rule):
    """Has an alert three steps after the first NaN, which is its consequence."""

    def check(self, record: hs.StepRecord, history: hs.rules.History) -> Iterator[hs.rules.Alert]:
        if record.step == 5:
            yield self.alert(record, 1, "comes later", 1.0)


def train(rules: Any, out: Path | None = None, steps: int = 6, bad: int = 2) -> hs.Watch:
    """A training whose inputs are NaN from a step on; a closed watch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hs.watch(model, optimizer, rules=rules, out=out) as watch:
        for step in range(steps):
            x = torch.randn(8, 4)
            x[0, 0] = torch.nan if step >= bad else x[0, 0]
            take_step(optimizer, model(x).square().mean())
    return watch


def test_a_webhook_gets_one_message_for_an_incident(server: Server, tmp_path: Path) -> None:
    rules = ["default", Later(), hs.actions.Webhook(server.url)]
    watch = train(rules, tmp_path / "run")
    (severe,) = [incident for incident in watch.incidents if incident.severity != "note"]
    assert len(severe.consequences) == 1
    (body,) = server.bodies
    assert body["severity"] == "error"
    assert (body["rule"], body["step"], body["since"]) == ("non-finite", 2, 2)
    assert (body["site"], body["kind"], body["run"]) == ("", "input", str(tmp_path / "run"))
    assert body["text"].startswith("error: non-finite: step 2: input of the model has 1 NaN")
    assert body["advice"].startswith("look at the data of this step")
    assert body["advice"] in body["text"]
    assert body["url"] is None
    assert watch.coverage().failures == {}


def test_slack_gets_a_text(server: Server) -> None:
    train(hs.actions.Slack(server.url))  # the default rules
    (body,) = server.bodies
    assert list(body) == ["text"]
    assert "step 2" in body["text"]
    message = hs.rules.Alert(1, None, "a<b>&", "output", None, "loss", 1.0, "a<b>&", "error")
    assert "a&lt;b&gt;&amp;" in actions.Slack(server.url)._body(Incident(message), None)["text"]


def test_any_callable_is_an_action() -> None:
    told: list[Incident] = []
    threads: list[threading.Thread] = []

    def tell(incident: Incident) -> None:
        told.append(incident)
        threads.append(threading.current_thread())

    watch = train([hs.rules.NonFinite(), tell])
    assert [incident.step for incident in told] == [2]
    assert told[0].message == watch.incidents[0].message
    assert threads[0] is not threading.main_thread()
    assert {alert.rule for alert in watch.alerts} == {"non-finite"}


def test_wandb_needs_a_run() -> None:
    assert "no W&B run is under way" in str(watch_of(lambda: hs.actions.wandb(incident())))


def test_notes_and_sound_runs_send_nothing() -> None:
    told: list[Incident] = []
    train(["default", told.append], bad=100)
    assert told == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("answers", "requests", "failure"),
    [
        ([500, 503, 200], 3, None),
        ([429, 200], 2, None),
        ([500, 500, 500, 500], 4, "answered 500"),
        ([404], 1, "answered 404"),
        ([302], 1, "answered 302"),
    ],
)
def test_what_a_server_refuses_is_sent_again_where_that_may_help(
    server: Server, answers: list[int], requests: int, failure: str | None, tmp_path: Path
) -> None:
    other = Server()
    server.location = other.url
    server.answers = answers
    hook = hs.actions.Webhook(server.url)
    sent_by_hand = watch_of(lambda: hook(incident(), None, threading.Event()))
    assert len(server.bodies) == requests
    assert other.bodies == []
    other.close()
    assert (sent_by_hand is None) == (failure is None)
    if failure is not None:
        assert failure in str(sent_by_hand)
        assert SECRET not in str(sent_by_hand)
    server.answers = [404]
    watch = train(["default", hook], tmp_path / "run")
    failures = watch.coverage().failures
    assert list(failures) == ["action Webhook(127.0.0.1)"]
    assert "answered 404; the incident of step 2 is in the run only" in str(failures)


def incident() -> Incident:
    return Incident(hs.rules.Alert(1, None, "a", "output", None, "loss", 1.0, "text", "error"))


def watch_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["hangs", "gone", "odd"])
def test_a_server_that_is_not_there_costs_the_training_nothing(
    server: Server, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    url = server.url
    if kind == "hangs":
        server.hangs.clear()
    elif kind == "gone":
        server.close()
    else:
        url += " \x7f"  # no request can have that
    hook = hs.actions.Webhook(url, timeout=0.2)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = hs.watch(model, optimizer, rules=["default", hook], out=tmp_path / "run")
    began = time.monotonic()
    for _ in range(20):
        model(torch.full((2, 4), torch.nan)).sum().backward()
        optimizer.step()
    assert watch.incidents
    assert time.monotonic() - began < 5
    watch.close()
    (failure,) = watch.coverage().failures.values()
    assert "127.0.0.1" in failure
    said = [str(one.message) for one in recwarn.list]
    shown = [failure, repr(hook), caplog.text, *capfd.readouterr(), *said]
    assert not any(SECRET in text for text in shown)
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in files)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_action_that_raises_or_hangs_leaves_the_training_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raises(incident: Incident) -> None:
        raise SystemExit("not mine to end")

    watch = train(["default", raises])
    assert watch.open_step == 6
    assert "SystemExit: not mine to end" in str(watch.coverage().failures)

    hangs = threading.Event()
    monkeypatch.setattr("hookstats.watching.recorder.PATIENCE", 0.2)
    began = time.monotonic()
    watch = train(["default", lambda incident: hangs.wait(20)])
    assert time.monotonic() - began < 10
    assert "no return within 0.2 s; 1 of its incidents may be lost" in str(
        watch.coverage().failures
    )
    hangs.set()


@pytest.mark.parametrize("url", ["hooks.slack.com/T0KEN", "ftp://host/T0KEN", "http:///T0KEN", 3])
def test_bad_urls_are_refused_without_being_shown(url: Any) -> None:
    with pytest.raises(ValueError, match="expected http:// or https:// and a host") as caught:
        hs.actions.Slack(url)
    assert SECRET not in str(caught.value)


def test_the_page_of_a_wandb_run_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        class run:
            url = "https://wandb.ai/a/b/runs/c"

    monkeypatch.setitem(actions.sys.modules, "wandb", Module)
    body = actions.Webhook("https://host/T0KEN")._body(incident(), Path("runs/a"))
    assert body["url"] == Module.run.url
    assert body["text"].splitlines()[-1] == Module.run.url
