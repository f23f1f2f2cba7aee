"""hookstats doctor: says what is in use and why not more; finds what is broken."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
import torch
from support.commands import Result, call, spawn

from hookstats.cli.doctor import OPTIONAL
from hookstats.kernels import native, ops


def report(result: Result) -> dict[str, str]:
    """The lines by what they are about, which is 13 columns wide."""
    return {line[:13].strip(): line[13:] for line in result.out.splitlines()}


def test_it_says_what_is_in_use() -> None:
    result = call("doctor")
    assert (result.code, result.err) == (0, "")
    lines = report(result)
    assert lines["torch"].startswith(torch.__version__)
    assert lines["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert lines["CPU kernels"].startswith("yes: _C.abi3.so with ")
    assert lines["CPU kernels"].endswith(torch.ops.hookstats.cpu_capability())
    assert lines["self-test"] == "the operator agrees with the reference"
    assert lines.keys() >= {"hookstats", "machine", "compiler", "CUDA kernels", "C++ hooks"}
    assert lines.keys() >= OPTIONAL.keys()


@pytest.mark.check
def test_a_limited_instruction_set_is_said() -> None:
    lines = report(spawn("doctor", ATEN_CPU_CAPABILITY="default"))
    assert lines["CPU kernels"] == (
        "yes: _C.abi3.so with DEFAULT, limited by ATEN_CPU_CAPABILITY=default"
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA")
def test_without_cuda_it_says_why() -> None:
    assert report(call("doctor"))["CUDA kernels"] == (
        f"no: torch {torch.__version__} is built without CUDA or ROCm"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nonexistent/c++", "no: /nonexistent/c++: No such file or directory"),
        ("false", "no: false --version: exit code 1"),
        ("'", "no: No closing quotation"),
    ],
)
def test_a_missing_compiler_is_no_harm(monkeypatch, command: str, said: str) -> None:
    monkeypatch.setenv("CXX", command)
    result = call("doctor")
    assert result.code == 0
    assert report(result)["compiler"] == said


def test_missing_libraries_have_the_command_that_installs_them(monkeypatch) -> None:
    known = importlib.metadata.version

    def version(name: str) -> str:
        if name in OPTIONAL:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = call("doctor")
    assert result.code == 0
    for name, purpose in OPTIONAL.items():
        said = f"no, needed for {purpose}: pip install {name}"
        assert report(result)[name] == said


def test_the_reason_for_no_cpp_hooks_is_said(monkeypatch) -> None:
    assert report(call("doctor"))["C++ hooks"] == "yes"
    monkeypatch.setattr(native, "why_not", "built for torch 2.12.0")
    assert report(call("doctor"))["C++ hooks"] == "no: built for torch 2.12.0"


def test_a_wrong_answer_is_broken(monkeypatch) -> None:
    right = ops.update_

    def wrong_count(x, dim, moments, tallies, *histogram) -> None:
        right(x, dim, moments, tallies, *histogram)
        tallies[2, 0] += 1

    def wrong_mean(x, dim, moments, tallies, *histogram) -> None:
        right(x, dim, moments, tallies, *histogram)
        moments[2, 0] += 0.01

    def fails(*arguments) -> None:
        raise RuntimeError("no kernel")

    for update, said in (
        (wrong_count, "BROKEN: the counts of the operator differ from the reference"),
        (wrong_mean, "BROKEN: the moments of the operator differ from the reference"),
        (fails, "BROKEN: no kernel"),
    ):
        monkeypatch.setattr(ops, "update_", update)
        result = call("doctor")
        assert result.code == 1
        assert report(result)["self-test"] == said
