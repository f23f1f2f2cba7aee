"""The soak, `python -m support.soak STEPS MINUTES DIRECTORY`: trains, with faults and restarts.

The run is on a small tmpfs of its own, which the training fills up now and then. Ends after so
many steps or minutes, whichever is first; then the run is compared with what was done, and the
figures are printed. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from support.soak_check import check
from support.soak_training import begin

from hookstats.runs.format import require_pyarrow

MIB, MIB_PER_STEP = 512, 0.005
"""Of the file system for the run: at least so much, and enough for all its steps."""
STOPS = 0.01
"""How often a session is stopped for a while, of the looks at it."""
SESSIONS = 10
"""Among which the steps are divided; every second one is killed before its end."""


def steps_closed(log: Path) -> int:
    return log.read_text().count('"step":') if log.exists() else 0


def stop(session: BaseProcess, seconds: float, log: Path) -> None:
    """Stop a session for so long, as a batch system does that suspends jobs."""
    assert session.pid is not None
    os.kill(session.pid, signal.SIGSTOP)
    time.sleep(seconds)
    with log.open("a") as lines:
        about = {"fault": "stop", "seconds": seconds, "at": time.monotonic()}
        lines.write(json.dumps(about) + "\n")
    os.kill(session.pid, signal.SIGCONT)


def train(steps: int, minutes: float, disk: Path, room: Path) -> None:
    """Run sessions until there are enough steps or it is late."""
    log = room / "log.jsonl"
    end = time.monotonic() + 60 * minutes
    rng = random.Random(0)
    session = 0
    faulthandler.enable()
    require_pyarrow().array([])  # imports pandas
    while (left := steps - steps_closed(log)) > 0 and time.monotonic() < end:
        share = min(left, steps // SESSIONS)
        child = begin(disk, room, share, session)
        done = steps_closed(log)
        # The last session ends by itself.
        killed_after = rng.randrange(share // 4, share) if session % 2 == 0 and left > share else 0
        pause = min(1.0, share / 4000)  # a short session is over in seconds
        while child.is_alive():
            time.sleep(pause)
            if rng.random() < STOPS:
                stop(child, pause * rng.uniform(0, 14), log)
            late = time.monotonic() > end
            if late or (killed_after and steps_closed(log) - done > killed_after):
                time.sleep(rng.random() * pause)
                child.kill()
                child.join()
                break
        else:
            if child.exitcode:
                raise SystemExit(f"session {session} ended with exit code {child.exitcode}")
        session += 1
    # One more, which closes the run, however late it is.
    last = begin(disk, room, 50, session)
    last.join()
    if last.exitcode:
        raise SystemExit(f"the last session ended with exit code {last.exitcode}")


def main(steps: int, minutes: float, directory: Path) -> int:
    disk, room = directory.resolve() / "disk", directory.resolve() / "room"
    for path in (disk, room):
        path.mkdir(parents=True, exist_ok=True)
    if "HOOKSTATS_SOAK" not in os.environ:  # in a mount namespace of its own
        size = max(MIB, int(steps * MIB_PER_STEP))
        mount = f'mount -t tmpfs -o size={size}m tmpfs "{disk}" && exec "$@"'
        again = [sys.executable, "-m", "support.soak", *sys.argv[1:]]
        os.environ["HOOKSTATS_SOAK"] = "mounted"
        os.execvp(
            "unshare", ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *again]
        )
    began = time.monotonic()
    train(steps, minutes, disk, room)
    spent = time.monotonic() - began
    figures, problems = check(disk, room)
    print(json.dumps({"minutes": round(spent / 60, 1), **figures}, indent=1))
    for problem in problems[:50]:
        print("wrong:", problem)
    print(f"{len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
