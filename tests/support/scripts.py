"""Training scripts in processes of their own, plain or by `hookstats run`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.paths import ROOT


def run(
    script: Path,
    *arguments: str,
    ranks: int = 1,
    watched: bool = True,
    launcher: Sequence[str] = (sys.executable,),
) -> tuple[int, str]:
    """The exit code and stderr of a training run; what each rank ended with is in result-RANK.

    launcher: what stands before "-m hookstats run".
    """
    words = [*launcher]
    if ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words += ["-m", "hookstats", "run"] if watched else []
    done = subprocess.run(
        [*words, *arguments],
        cwd=script.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)}
        | {"OMP_NUM_THREADS": "1", "HOME": str(script.parent), "USER": "user"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr


def results(script: Path) -> list[str]:
    return [path.read_text() for path in sorted(script.parent.glob("result-*"))]
