"""Every script in examples/ runs as it stands, and what it asserts holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_the_page_for_readers_of_tutorials_names_every_script() -> None:
    page = (ROOT / "docs" / "guides" / "from-hooks.md").read_text("utf-8")
    assert sorted(set(re.findall(r"\w+\.py\b", page))) == SCRIPTS


@pytest.mark.check
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error::RuntimeWarning"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.check
def test_the_notebook_shows_what_it_did_when_it_was_saved(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient, from a checkout's dev")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, from a checkout's dev")
    pytest.importorskip("ipykernel", reason="needs ipykernel, from a checkout's dev")
    saved = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    kinds = [shown(cell) for cell in saved.cells]
    assert {"text/html", "image/png"} <= set().union(*kinds)
    nbclient.NotebookClient(
        saved, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [shown(cell) for cell in saved.cells] == kinds


def shown(cell: Any) -> set[str]:
    """The kinds of what a cell of a notebook shows."""
    return {kind for output in cell.get("outputs", ()) for kind in output.get("data", ())}
