"""What `make gpu-check` is made of, as far as it goes without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda import cases, check, peers, ptxas, tables
from bench.cuda.__main__ import main
from bench.states import EVERYTHING

CPU = torch.device("cpu")
pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]


def test_it_needs_no_package_but_torch_and_numpy() -> None:
    others = ("matplotlib", "pytest", "pytest_benchmark", "cpuinfo")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({others}))\n"
    code = f"{blocked}import bench.cuda.__main__, bench.cuda.kernels, bench.cuda.check"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def sample() -> peers.Sample:
    layout = next(each for each in cases.layouts(1 << 18) if each.name == "(N, 64, H, W)")
    return peers.Sample(layout, cases.values("1% NaN", 1 << 18, torch.float32, CPU), 2)


@pytest.mark.parametrize("asked", tables.WHATS)
def test_what_was_timed_is_checked(asked: str) -> None:
    given, what = sample(), cases.WHATS[asked]
    for peer in (peers.Update(given, what), peers.statistics(given, what)):
        for _ in range(3):
            peer.prepare()
            peer.run()
        peer.check()


def test_a_wrong_result_is_found() -> None:
    given = sample()
    many = peers.UpdateMany(given.xs)
    many.run()
    many.check()
    given.xs[1].view(-1)[12345] += 1.0
    update = peers.Update(given, EVERYTHING)
    for _ in given.xs:
        update.prepare()
        update.run()
    for peer in (many, update):
        with pytest.raises(AssertionError):
            peer.check()


def test_a_smoke_run_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "gpu-check.json"
    only = ["--sections", "reading", "gradients", "host", "mlp"]
    assert main(["--smoke", "--device", "cpu", "--out", str(path.parent), *only]) == 0
    found = json.loads(path.read_text())
    assert {each["section"] for each in found["benchmarks"]} == set(only[1:])
    assert "no figure here is a measurement" in found["notes"].pop("smoke")
    assert all(note.startswith("measured, ") for note in found["notes"].values())
    assert path.with_suffix(".txt").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit, match="expected cuda"):
        main(["--device", "cpu", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("code", "said", "well"),
    [
        (0, "24 updates agree with the CPU\n========= ERROR SUMMARY: 0 errors\n", True),
        (9, "========= Invalid read\n========= ERROR SUMMARY: 3 errors\n", False),
        (
            0,
            "4 updates agree with the CPU\nRACECHECK SUMMARY: 0 hazards displayed (0 errors)",
            True,
        ),
        (
            0,
            "4 updates agree with the CPU\nRACECHECK SUMMARY: 2 hazards displayed (2 errors)",
            False,
        ),
        (1, "Error: Device not supported\n========= ERROR SUMMARY: 0 errors\n", None),
        (1, "Error: Device not supported\n========= ERROR SUMMARY: 1 error\n", None),
        (1, "Error: no such tool\n", None),
        (None, "", None),
    ],
)
def test_what_a_sanitizer_says(code: int | None, said: str, well: bool | None) -> None:
    assert check.verdict("memcheck", code, said).well is well


def test_what_ptxas_made_is_checked() -> None:
    """What cuobjdump says, with -res-usage and with -sass."""
    used = "arch = sm_90\n Function good:\n REG:128 STACK:64 SHARED:0\n"
    worse = used + " Function bad:\n REG:129 STACK:608 SHARED:0\n"
    code = "\n".join(
        [
            "Function : good",
            "VIADDMNMX R4, R4, -R5, R8, PT",
            "VIADDMNMX R17, R17, 0x00000001, R0, PT",
            "VIADDMNMX R4, R4.reuse, -R5.reuse, 0xb9600000, !PT",
        ]
    )
    wrong = "Function : bad\n@P0 VIADDMNMX R9, R0.reuse, 0xffffffff, R2, PT"
    assert list(ptxas.problems(used, code)) == []
    assert [each.partition(":")[0] for each in ptxas.problems(worse, wrong)] == [
        "sm_90 bad",
        "sm_90 bad",
        "bad",
    ]
