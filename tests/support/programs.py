"""run_python(): an interpreter that can import the modules of tests, on one rank or several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import python_path


def run_python(folder: Path, *arguments: str, ranks: int = 1) -> str:
    """What python prints with these arguments, in `folder`; by torchrun where there are ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    before = [python_path(), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *(launcher if ranks > 1 else ()), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(before), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
