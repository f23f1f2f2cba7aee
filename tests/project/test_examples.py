"""Every script in examples/ runs as it stands, and what it asserts holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
