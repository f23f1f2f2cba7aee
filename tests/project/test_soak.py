"""A short soak: `make soak` is the long one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import python_path


@pytest.mark.slow
def test_a_short_training_with_faults_and_kills_is_reconciled(tmp_path: Path) -> None:
    own_mounts = ["unshare", "--map-root-user", "--mount", "true"]
    if shutil.which("unshare") is None or subprocess.run(own_mounts).returncode:
        pytest.skip("no mount namespaces here: no disk to fill")
    done = subprocess.run(
        [sys.executable, "-m", "support.soak", "2000", "3", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 problems\n")
    assert '"kill": ' in done.stdout
