"""hookstats report --watch: the page is served, read-only, and new steps come to it."""

from __future__ import annotations

import gzip
import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium, screen
from support.commands import call, healthy, write_run
from support.payloads import payload_of
from support.samples import BINS, sample

from hookstats.cli import live, main
from hookstats.records.alerts import Alert, Severity
from hookstats.runs.alerts import Told
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter
from hookstats.show import page
from hookstats.show.overview import Overview, overview


@contextmanager
def growing(out: Path) -> Iterator[Any]:
    """A writer that puts each step on the disk at once, and (host, port) of the page's server."""
    writer = RunWriter(out, {"bins": BINS, "channel_bins": None}, seconds_per_part=0)
    writer.write(sample(0, channel_bins=None))
    run = open_run(out)
    serving = live.server(run, partial(page.payload_of, run), "127.0.0.1", 0)
    thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield writer, serving.server_address[:2]
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()
        writer.close()


def ask(address: tuple[str, int], path: str, method: str = "GET", host: str | None = None) -> Any:
    """The status, the text and the headers of an answer."""
    connection = http.client.HTTPConnection(address[0], address[1], timeout=30)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    zipped = answer.headers.get("Content-Encoding") == "gzip"
    text = (gzip.decompress(content) if zipped else content).decode()
    connection.close()
    return answer.status, text, answer.headers


def steps_of(payload: str) -> list[int]:
    packed = payload_of(f'<script id="payload">{payload}</script>')
    return [first for first, *_ in packed["spans"]]


def test_new_steps_come_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "_SHARE", 0.0)
    with growing(tmp_path / "run") as (writer, address):
        status, whole, headers = ask(address, "/")
        assert status == 200
        assert "connect-src 'self'" in whole
        assert [first for first, *_ in payload_of(whole)["spans"]] == [0]
        version = headers["X-Version"]
        assert ask(address, f"/data?after={version}")[1] == ""
        writer.write(sample(1, channel_bins=None))
        _, payload, headers = ask(address, f"/data?after={version}")
        assert steps_of(payload) == [0, 1]
        assert headers["X-Version"] != version
        assert ask(address, f"/data?after={headers['X-Version']}")[1] == ""


def test_nothing_else_is_served_and_nothing_is_taken(tmp_path: Path) -> None:
    with growing(tmp_path / "run") as (_, address):
        assert ask(address, "/run.json")[0] == 404
        assert ask(address, "/../run.json")[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            assert ask(address, "/", method)[0] == 501
        for host in ("evil.example:80", "evil.example", "", "127.0.0.1.evil.example"):
            assert ask(address, "/data", host=host)[0] == 403
        for host in (f"localhost:{address[1]}", "localhost", "127.0.0.1"):  # port 80 is not said
            assert ask(address, "/", host=host)[0] == 200


def test_who_goes_away_before_the_answer_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone, sent = threading.Event(), threading.Event()
    pack = gzip.compress

    def slowly(content: bytes, level: int) -> bytes:
        assert gone.wait(30)
        sent.set()
        return pack(content, level) + bytes(1 << 24)  # more than sockets keep

    with growing(tmp_path / "run") as (_, address):
        monkeypatch.setattr(live.gzip, "compress", slowly)
        client = socket.create_connection(address)
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        gone.set()
        assert sent.wait(30)
        monkeypatch.undo()
        assert ask(address, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_that_cannot_be_read_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "_SHARE", 0.0)
    with growing(tmp_path / "run") as (writer, address):
        alerts = tmp_path / "run" / "alerts-00000.jsonl"
        alerts.write_text("nonsense\n")
        status, text, _ = ask(address, "/")
        assert status == 503
        assert "alerts-00000.jsonl" in text
        alerts.unlink()
        writer.write(sample(1, channel_bins=None))
        assert ask(address, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--watch", "-o", "page.html"), "--out page.html: expected none with --watch"),
        (("--host", "0.0.0.0"), "--host 0.0.0.0: expected none without --watch"),
        (("--port", "0"), "--port 0: expected none without --watch"),
    ],
)
def test_options_of_the_file_and_of_the_server_are_not_mixed(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    code, out, error = call("report", write_run(tmp_path / "run", healthy(0)), *options)
    assert (code, out) == (2, "")
    assert named in error
    assert not (tmp_path / "run.html").exists()


def test_the_command_serves_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []

    def forever(serving: http.server.ThreadingHTTPServer) -> None:
        """Answer one request for the page, and be interrupted."""
        thread = threading.Thread(target=serving.handle_request)
        thread.start()
        host, port = serving.server_address[:2]
        answers.append(ask((str(host), port), "/")[0])
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(http.server.ThreadingHTTPServer, "serve_forever", forever)
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", healthy(0))
    assert main(["report", "run", "--watch"]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")
    assert answers == [200]


def test_a_run_without_a_step_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None}, seconds_per_part=0)
    timer = threading.Timer(0.3, writer.write, (sample(0, channel_bins=None),))

    def interrupted(serving: http.server.ThreadingHTTPServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(http.server.ThreadingHTTPServer, "serve_forever", interrupted)
    timer.start()
    assert main(["report", str(tmp_path / "run"), "--watch"]) == 0
    timer.join()
    writer.close()
    waiting, serving = capsys.readouterr().out.splitlines()
    assert waiting.startswith("no step is on the disk yet")
    assert serving.startswith("http://127.0.0.1:")


def test_a_file_of_the_page_connects_nowhere(tmp_path: Path) -> None:
    with growing(tmp_path / "run"):
        whole = page.render(open_run(tmp_path / "run"))
    assert "connect-src" not in whole
    assert "data-live" not in whole.split("<body>")[0]


@pytest.mark.check
def test_the_page_in_a_browser_takes_new_steps_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE", 0.0)
    with growing(tmp_path / "run") as (writer, address), chromium(tmp_path / "profile") as browser:
        screen(browser, 1280, 800)
        browser.get(f"http://{address[0]}:{address[1]}/")
        waiting = pytest.importorskip("selenium.webdriver.support.wait")
        wait = waiting.WebDriverWait(browser, 60)
        wait.until(lambda driver: driver.find_element("id", "when").text == "step 0")
        browser.find_element("id", "pin").click()
        layer = browser.find_element("id", "detail-title").text
        writer.write(sample(1, channel_bins=None))
        # Who is at the last step goes on with it; the layer and its pin stay.
        wait.until(lambda driver: driver.find_element("id", "when").text == "step 1")
        assert browser.find_element("id", "detail-title").text == layer
        assert browser.find_element("id", "pin").get_attribute("aria-pressed") == "true"
        assert "2 steps" in browser.find_element("id", "subtitle").text
        browser.find_element("id", "earlier").click()
        writer.write(sample(2, channel_bins=None))
        wait.until(lambda driver: "3 steps" in driver.find_element("id", "subtitle").text)
        assert browser.find_element("id", "when").text == "step 0"
        assert browser.get_log("browser") == []


def sick(severity: Severity, step: int) -> Told:
    """An alert about one of the layers."""
    message = f"dead channels: step {step}: output of 'whole' is {severity}"
    alert = Alert(step, 0, "scalar", "output", None, severity, 1.0, message, severity)
    return Told(alert, step, True, {})


@pytest.mark.check
def test_what_was_chosen_stays_where_columns_merge_and_alerts_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [100]

    def merged(run: Run, steps: list[int], apart: list[int]) -> Overview:
        return overview(run, steps, (), cells=columns[0] * len(run[steps[-1]]))

    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(page, "overview", merged)
    with growing(tmp_path / "run") as (writer, address), chromium(tmp_path / "profile") as browser:
        for step in range(1, 16):
            writer.write(sample(step, channel_bins=None))
        writer.write_alerts([sick("note", 12)])
        screen(browser, 1280, 800)
        browser.get(f"http://{address[0]}:{address[1]}/")
        waiting = pytest.importorskip("selenium.webdriver.support.wait")
        wait = waiting.WebDriverWait(browser, 60)
        wait.until(lambda driver: driver.find_element("id", "when").text == "step 12")
        # The first poll has nothing to bring.
        polls = "return performance.getEntriesByType('resource').map((one) => one.decodedBodySize)"
        wait.until(lambda driver: driver.execute_script(polls))
        assert browser.execute_script(polls)[0] == 0
        browser.execute_script("location.hash = '#steps=10:13'")
        wait.until(lambda driver: driver.find_element("id", "zoomed").text)
        assert browser.find_element("id", "zoomed").text == "steps 10\u201313"
        columns[0] = 5
        writer.write(sample(16, channel_bins=None))
        writer.write_alerts([sick("error", 15)])
        wait.until(lambda driver: "17 steps" in driver.find_element("id", "subtitle").text)
        first, last = browser.find_element("id", "zoomed").text.split()[1].split("\u2013")
        assert 7 <= int(first) <= 10
        assert 13 <= int(last) < 16
        rules = browser.find_elements("css selector", "[data-alert] .rule")
        assert [rule.text.split()[-1] for rule in rules] == ["error", "note"]
        (current,) = browser.find_elements("css selector", "[data-alert][aria-current=true]")
        assert current.find_element("css selector", ".rule").text.split()[-1] == "note"
        assert browser.get_log("browser") == []
