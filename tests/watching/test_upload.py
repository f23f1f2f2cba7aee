"""Runs at URLs: uploaded while they are written, whatever the network does, and read there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import call
from support.paths import ROOT
from torch import nn

import hookstats as hs
from hookstats.runs import remote
from hookstats.watching import upload

fsspec = pytest.importorskip("fsspec")

from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402


class Network(MemoryFileSystem):  # type: ignore[misc]
    """Files that are reached while nothing is wrong."""

    protocol = "network"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    wrong: BaseException | threading.Event | None = None

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        if isinstance(Network.wrong, threading.Event):
            Network.wrong.wait(20)
        elif Network.wrong is not None:
            raise Network.wrong
        super().put_file(lpath, rpath, **options)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOOKSTATS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "SECONDS", 0.0)
    monkeypatch.setattr(upload, "SECONDS", 0.02)
    monkeypatch.setattr(upload, "LAST_TRIES", (0.0, 0.01))
    fsspec.register_implementation("network", Network, clobber=True)
    yield
    Network.wrong = None
    Network.store.clear()
    MemoryFileSystem.store.clear()


def train(out: str, steps: int = 3, **options: Any) -> hs.Watch:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with hs.watch(model, out=out, kinds=["output"], rules=(), **options) as watch:
        for _ in range(steps):
            model(torch.ones(1, 2))
            watch.log(loss=1.0)
            watch.step()
    return watch


def wait_for(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def names(url: str) -> list[str]:
    """All files at a URL, by their paths in the run."""
    system, root = remote.file_system(url)
    return sorted(path.removeprefix(root).strip("/") for path in system.find(root))


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_run_at_a_url_is_that_of_its_directory(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{scheme}://{tmp_path}/bucket/runs/a"
    watch = train(url)
    assert watch.path == remote.written(url)
    assert watch.path.is_relative_to(tmp_path / "cache")
    assert f"{url}: 3 steps" in capsys.readouterr().err
    assert watch.coverage().failures == {}
    folders = ("channels", "scalars", "tensors")
    part = "00000-000000-000-000000000000.parquet"
    assert names(url) == [
        *(f"{folder}/{part}" for folder in folders[:1]),
        "run-00000.json",
        "run.json",
        *(f"{folder}/{part}" for folder in folders[1:]),
    ]
    run, local = hs.open_run(url), hs.open_run(watch.path)
    assert run.closed
    assert run.path != local.path
    assert run.table().equals(local.table())
    assert run[2]["", "output"].mean.equal(local[2]["", "output"].mean)
    assert run.scalars["loss"].values.tolist() == [1.0] * 3
    assert not hs.compare(url, watch.path)
    assert call("show", url).out.startswith("step 2\n")
    with pytest.raises(FileNotFoundError, match=r"path = 'memory:///none': no such run"):
        hs.open_run("memory:///none")


def test_a_run_at_a_url_is_refused_replaced_or_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://runs/a"
    train(url)
    for machine in ("cache", "another"):
        monkeypatch.setenv("HOOKSTATS_CACHE", str(tmp_path / machine))
        with pytest.raises(FileExistsError, match="overwrite=True replaces the run"):
            train(url)
    train(url, steps=2, append=True)
    assert hs.open_run(url).steps == [0, 1, 2, 3, 4]
    monkeypatch.setenv("HOOKSTATS_CACHE", str(tmp_path / "third"))
    train(url, steps=1, overwrite=True)
    assert hs.open_run(url).steps == [0]
    assert len(names(url)) == 5
    assert hs.open_run(train("memory://runs/a-{n}").path or "").steps == [0, 1, 2]
    train("memory://runs/a-{n}")
    assert hs.open_run("memory://runs/a-2").steps == [0, 1, 2]


def test_of_two_machines_that_begin_at_once_one_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    url = "memory://runs/a"
    monkeypatch.setattr(upload, "SECONDS", 60.0)
    model = nn.Linear(2, 2)
    with hs.watch(model, out=url, kinds=["output"], rules=()) as watch:
        monkeypatch.setenv("HOOKSTATS_CACHE", str(tmp_path / "another"))
        train(url, steps=2)
        model(torch.ones(1, 2))
        watch.step()
    assert hs.open_run(url).steps == [0, 1]
    assert hs.open_run(watch.path or "").steps == [0]
    assert "has another run" in str(watch.coverage().failures)
    assert "lacks files of the run" in str(recwarn[-1].message)


def test_a_directory_that_is_removed_deletes_nothing_there(
    recwarn: pytest.WarningsRecorder,
) -> None:
    url = "memory://runs/a"
    model = nn.Linear(2, 2)
    with hs.watch(model, out=url, kinds=["output"], rules=()) as watch:
        model(torch.ones(1, 2))
        watch.step()
        watch._recorder.drain()
        wait_for(lambda: len(names(url)) >= 4)
        shutil.rmtree(watch.path or "")
        time.sleep(0.1)  # some looks at what is not there
    assert len(names(url)) >= 4
    assert recwarn


def test_a_run_is_read_while_it_is_written() -> None:
    url = "memory://runs/a"
    model = nn.Linear(2, 2)
    with hs.watch(model, out=url, kinds=["output"], rules=(), channels="always") as watch:
        for step in range(3):
            model(torch.ones(1, 2))
            watch.step()
            watch._recorder.drain()  # ends a part
            part = f"tensors/00000-00000{step}-000-{step:012}.parquet"
            wait_for(lambda part=part: part in names(url))
            if not step:
                run = hs.open_run(url)
            assert run.steps == run.steps_with_channels == list(range(step + 1))
            assert run.closed is None
    assert run.steps == [0, 1, 2]
    assert run.closed


def test_what_is_thinned_is_deleted_there_too() -> None:
    url = "memory://runs/a"
    model = nn.Linear(64, 64)
    with hs.watch(model, out=url, rules=(), channels="always", max_bytes=100_000, every=1) as watch:
        for _ in range(40):
            model(torch.randn(1, 64)).sum().backward()
            watch.step()
            watch._recorder.drain()
    local = hs.open_run(watch.path or "")
    assert local.thinned
    assert hs.open_run(url).steps == local.steps
    there = {name for name in names(url) if "/" in name}
    assert there == {f"{p.parent.name}/{p.name}" for p in (watch.path or Path()).glob("*/*")}


def test_a_dead_network_costs_the_training_nothing(recwarn: pytest.WarningsRecorder) -> None:
    url = "network://runs/a"
    Network.wrong = ConnectionError("no route")
    began = time.monotonic()
    watch = train(url, steps=5)
    assert time.monotonic() - began < 5
    assert hs.open_run(watch.path or "").steps == list(range(5))
    ((what, why),) = watch.coverage().failures.items()
    assert what == f"uploading to out = '{url}'"
    assert "ConnectionError: no route" in why
    assert str(watch.path) in why
    said = [str(one.message) for one in recwarn]
    assert len(said) == 2
    assert said[1] == f"hookstats: {url} lacks files of the run, which is whole in {watch.path}"
    assert names(url) == []
    Network.wrong = None
    train(url, steps=1, append=True)
    assert hs.open_run(url).steps == list(range(6))


def test_a_network_that_comes_back_gets_all(recwarn: pytest.WarningsRecorder) -> None:
    url = "network://runs/a"
    Network.wrong = ConnectionError("no route")
    model = nn.Linear(2, 2)
    with hs.watch(model, out=url, kinds=["output"], rules=()) as watch:
        wait_for(lambda: watch.coverage().failures)
        model(torch.ones(1, 2))
        watch.step()
        Network.wrong = None
    assert len(recwarn) == 1
    run = hs.open_run(url)
    assert run.steps == [0]
    assert list((run.coverage or {})["failures"]) == [f"uploading to out = '{url}'"]


def test_a_network_that_hangs_is_left(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(upload, "PATIENCE", 0.2)
    Network.wrong = threading.Event()
    watch = train("network://runs/a")
    assert "lacks files of the run" in str(recwarn.pop().message)
    assert hs.open_run(watch.path or "").steps == [0, 1, 2]
    Network.wrong.set()


def test_a_url_that_nothing_reaches_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown"):
        hs.watch(nn.Linear(2, 2), out="unknown://a")
    monkeypatch.setattr(Network, "info", _broken)
    for attempt in (lambda: train("network://a"), lambda: hs.open_run("network://a")):
        with pytest.raises(OSError, match="network://a: RuntimeError: of the network"):
            attempt()


def _broken(*args: Any, **options: Any) -> None:
    raise RuntimeError("of the network")


S3 = """
import sys
import torch
import hookstats as hs

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = hs.watch(model, optimizer, out="s3://bucket/runs/a", rules=())
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""  # Which never closes the watch: the end of the interpreter does.


@pytest.mark.check  # needs what `make test` does not install
def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    port = moto.get_host_and_port()[1]
    # A name, not a number: looking it up needs a thread of an executor.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("no_proxy", "localhost")
    try:
        s3fs.S3FileSystem().mkdir("bucket")
        done = subprocess.run(
            [sys.executable, "-c", S3], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "s3://bucket/runs/a: 3 steps" in done.stderr
        assert "warning" not in done.stderr
        run = hs.open_run("s3://bucket/runs/a")
        assert run.steps == [0, 1, 2]
        assert run.closed
    finally:
        moto.stop()
    with pytest.raises(OSError, match=r"s3://bucket/runs/a"):
        hs.open_run("s3://bucket/runs/a")
