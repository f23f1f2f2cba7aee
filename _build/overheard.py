"""What compilers say: passed on as it comes, and searched for the first error if they fail."""

from __future__ import annotations

import os
import re
import sys
from threading import Thread

# Of compilers and of linkers; that the linker failed, as g++ says, is no reason.
_ERROR = re.compile(
    r"^(?!collect2)\S+: (?:fatal )?error: |: cannot find -l|: undefined reference to "
)


def first_error(lines: list[str]) -> str | None:
    """The first of `lines` that says what is wrong; None if none does."""
    return next((line.strip() for line in lines if _ERROR.search(line)), None)


class Overheard:
    """Context: keeps the lines that this process and its children write to stdout and stderr."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> Overheard:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = [os.dup(fd) for fd in (1, 2)]
        self._threads = []
        for fd, outside in zip((1, 2), self._saved, strict=True):
            end, begin = os.pipe()
            os.dup2(begin, fd)
            os.close(begin)
            self._threads.append(Thread(target=self._pass_on, args=(end, outside), daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, outside in zip((1, 2), self._saved, strict=True):
            os.dup2(outside, fd)
        for thread, outside in zip(self._threads, self._saved, strict=True):
            thread.join()
            os.close(outside)

    def _pass_on(self, end: int, outside: int) -> None:
        with os.fdopen(end, "rb") as said:
            for line in said:
                os.write(outside, line)
                self.lines.append(line.decode(errors="replace"))
