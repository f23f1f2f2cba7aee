"""Programs: the tuner's programs as a device that measures, one of them running at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import IO, Any

from bench.cuda.tune.cases import Case
from bench.cuda.tune.ledger import Measured
from bench.cuda.tune.policy import Code, Compiled, Plan
from bench.cuda.tune.variants import Variant

LAUNCHES, REPLAYS = 20, 7
SECONDS = 60.0
"""After which a program that does not answer is ended."""


class CrashedError(Exception):
    """A program ended, or was ended, before it answered."""


class Programs:
    """Starts a program when its kernels are asked for, and again after it crashed."""

    def __init__(
        self,
        variants: Sequence[Variant],
        log: Path,
        *,
        nbytes: int = 2 << 30,
        launches: int = LAUNCHES,
        replays: int = REPLAYS,
        seconds: float = SECONDS,
    ) -> None:
        """log: what programs say when they fail; nbytes: of the inputs of each dtype."""
        self._variants, self._log, self._nbytes = list(variants), log, nbytes
        self._asked = f"launches={launches} replays={replays}"
        self._seconds = seconds
        self._running: subprocess.Popen[str] | None = None
        self._program: Path | None = None

    @property
    def codes(self) -> list[Code]:
        return [variant.code for variant in self._variants]

    def hello(self, code: Code) -> dict[str, Any]:
        """The device's name and capability, and the program's own numbers.

        Raises:
            CrashedError: it does not run here.
        """
        program = next(each.program for each in self._variants if each.code == code)
        return self._ask(program, "hello")

    def plan(self, compiled: Compiled, case: Case, plan: Plan) -> str:
        """What a plan launches."""
        answer = self._ask(self._of(compiled), f"plan {case.words} {words(plan)}")
        return str(answer["plan"])

    def time(self, compiled: Compiled, case: Case, plan: Plan) -> Measured:
        """How long that takes, if its result is right and the program survives it.

        Raises:
            CrashedError: it does not start again after that: it was no fault of the point.
        """
        line = f"time {self._asked} {case.words} {words(plan)}"
        program = self._of(compiled)
        try:
            answer = self._ask(program, line)
        except CrashedError as error:
            self._ask(program, "hello")
            return Measured("crashed", text=str(error))
        if "wrong" in answer:
            self.close()  # what else it left behind nobody knows
            return Measured("wrong", text=answer["wrong"])
        times = (answer[name] for name in ("median", "least", "most", "megahertz"))
        return Measured("ok", *times)

    def close(self) -> None:
        """Ends the program that runs."""
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
        self._running = self._program = None

    def _of(self, compiled: Compiled) -> Path:
        # The one that runs, if it has these kernels: starting another takes seconds.
        fit = [each.program for each in self._variants if each.code.of(compiled.agent) == compiled]
        if not fit:
            raise ValueError(f"{compiled}: expected kernels that are built")
        return self._program if self._program in fit else fit[0]

    def _ask(self, program: Path, line: str) -> dict[str, Any]:
        if program != self._program:
            self._start(program)
        assert self._running is not None
        running = self._running
        assert running.stdin is not None
        assert running.stdout is not None
        timer = Timer(self._seconds, running.kill)
        timer.start()
        try:
            answer = self._answer(running.stdin, running.stdout, line)
        finally:
            timer.cancel()
        if answer is None:
            code = running.wait()
            self.close()
            raise CrashedError(f"{program.parent.name} ended with {code}: {self._last()}")
        if "error" in answer:
            raise ValueError(f"{program} was asked {line!r}: {answer['error']}")
        return answer

    @staticmethod
    def _answer(to: IO[str], from_: IO[str], line: str) -> dict[str, Any] | None:
        try:
            to.write(line + "\n")
            to.flush()
        except BrokenPipeError:
            return None
        said = from_.readline()
        return json.loads(said) if said.endswith("\n") else None

    def _start(self, program: Path) -> None:
        self.close()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as log:
            self._running = subprocess.Popen(
                [str(program), str(self._nbytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._program = program

    def _last(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


def words(plan: Plan) -> str:
    """As the programs read them."""
    return " ".join(f"{name}={value}" for name, value in plan._asdict().items())
