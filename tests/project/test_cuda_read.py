"""What gpu-check measured, and what docs/cuda.md says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda import page, read, tables
from bench.measured import Case, Results

GPU = {"device": "a GPU", "multiprocessors": 132, "torch": "2.11", "date": "2026-01-01"}
READ = Case(
    tables.READING,
    "(N, L, 64) bf16",
    1.0,
    {"torch.sum": [0.9e-4] * 3, "moments": [1e-4] * 3},
)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page, into which results of another folder are written."""
    copy = tmp_path / "cuda.md"
    copy.write_text(page.PAGE.read_text())
    monkeypatch.setattr(read, "PAGE", copy)
    monkeypatch.setattr(read, "KEPT", tmp_path / "results")
    return copy


def test_the_page_says_what_is_kept() -> None:
    text = page.PAGE.read_text()
    assert read.page(text, read.load(read.kept(read.KEPT))) == text, "run python -m bench.cuda.read"


def test_a_result_becomes_a_section(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = read.KEPT / "h200.json"
    Results(GPU, [READ], ["memcheck: ok: 0 errors"]).save(path)
    assert read.main([]) == 0
    text = written.read_text()
    assert "Measured on a GPU (torch 2.11): see [below](#measured).\n" in text
    assert "### a GPU, 132 multiprocessors, torch 2.11, 2026-01-01\n" in text
    verdict = r"moments, bf16: of torch.sum's rate +>= 0\.92x +0\.90x +0/1 +short by 2%"
    assert re.search(verdict, text)
    assert re.search(verdict, capsys.readouterr().out)
    assert "\n- memcheck: ok: 0 errors\n" in text
    assert re.search(r"\(N, L, 64\) bf16 +90\.00 +100 ", text)
    assert read.NOTHING not in text
    path.unlink()
    assert read.main([]) == 1
    assert written.read_text() == read.page(page.PAGE.read_text(), [])


def test_without_a_result_it_says_so(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read.main([]) == 1
    assert "has no result of a GPU: run `make gpu-check`" in capsys.readouterr().err
    assert read.NOTHING in written.read_text()


@pytest.mark.parametrize(
    ("machine", "notes"), [({"cpu": "a CPU"}, []), ({"device": "a CPU"}, []), (GPU, [tables.SMOKE])]
)
def test_what_is_no_measurement_of_a_gpu_is_refused(
    written: Path, machine: dict[str, object], notes: list[str]
) -> None:
    path = read.KEPT / "other.json"
    Results(machine, [READ], notes).save(path)
    assert read.kept(read.KEPT) == []
    before = written.read_text()
    with pytest.raises(SystemExit, match=r"other\.json: expected what gpu-check measured"):
        read.main([str(path)])
    with pytest.raises(SystemExit, match=r"none\.json: no such file"):
        read.main([str(path.with_name("none.json"))])
    assert written.read_text() == before


def test_a_page_without_its_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="what gpu-check measured"):
        page.filled(f"no lines\n{page.END}", page.MEASURED, "text")
    with pytest.raises(ValueError, match="what gpu-check measured"):
        page.filled(page.MEASURED, page.MEASURED, "text")
