"""Work done in a process beside this one, forked off, as far as the system can fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection


def start(work: Callable[[], None]) -> Callable[[], None]:
    """Begins `work` in a process of its own.

    Returns what waits until it is done, and raises RuntimeError with its reason if it failed. Where
    a process cannot be forked, the work is done by that call.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return work
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(work, sender), daemon=True)
    process.start()
    sender.close()

    def wait() -> None:
        try:
            problem = receiver.recv()
        except EOFError:
            process.join()
            problem = f"its process ended with exit code {process.exitcode}"
        process.join()
        if problem is not None:
            raise RuntimeError(problem)

    return wait


def stop() -> None:
    """Ends the work that nobody waits for any more: it prints nothing from now on."""
    for process in multiprocessing.active_children():
        process.terminate()
        process.join()


def _do(work: Callable[[], None], sender: Connection) -> None:
    problem = None
    try:
        work()
    except Exception as error:
        problem = str(error) or type(error).__name__
    sender.send(problem)
