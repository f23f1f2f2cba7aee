"""load_config(): the arguments of watch() from a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.modules import network

import hookstats as hs
from hookstats.stats.bins import LinearBins

pytest.importorskip("tomllib" if __import__("sys").version_info >= (3, 11) else "tomli")


def test_a_file_configures_watch(tmp_path: Path) -> None:
    path = tmp_path / "watch.toml"
    path.write_text(
        f"""
        every = 10
        kinds = ["output", "param_grad"]
        include = "0*"
        out = {str(tmp_path / "run")!r}
        channel_bins = false
        channel_dim = false
        max_bytes = false
        rules = "default"
        reduce = {{every = 100, timeout = 5}}
        [bins]
        type = "linear"
        bins = 8
        lo = -1.0
        hi = 1.0
        """
    )
    config = hs.load_config(path)
    assert config["bins"] == LinearBins(8, -1.0, 1.0)
    assert config["channel_bins"] is None
    assert config["channel_dim"] is config["max_bytes"] is None
    assert config.pop("reduce") == hs.Reduce(every=100, timeout=5)
    with hs.watch(network(), **config):
        pass
    header = hs.open_run(tmp_path / "run").header
    assert header["every"] == 10
    assert header["channel_dim"] is None
    assert list(header["modules"]) == ["0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evry = 1", "has 'evry'; did you mean 'every'.: expected arguments of watch, kinds, "),
        ("optimizer = 1", "has 'optimizer'"),
        ("mesh = 1", "has 'mesh'"),
        ("reduce = 1", "has reduce = 1: expected a table, such as {every = 100}"),
        ("reduce = {evry = 1}", "has reduce = .*: expected a table.*'evry'"),
        (
            "reduce = {every = 0}",
            "has reduce = .*: expected a table.*every = 0: expected",
        ),
        ("every = ", "expected TOML"),
        ("bins = 64", "has bins = 64: expected false, or a table of bins"),
        ("bins = {type = 'log', bits = 3}", "has bins = .*: expected false, or a table of bins"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "watch.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        hs.load_config(path)
    with pytest.raises(FileNotFoundError):
        hs.load_config(tmp_path / "none.toml")
