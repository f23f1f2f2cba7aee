"""serve(): the page of a growing run, on this machine's own address, with steps as they come."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from hookstats.runs.run import Run
from hookstats.show import page
from hookstats.show.page.payload import Payload

PAUSE = 2.0
"""The least seconds between two readings of the run."""
_LOOPBACK = ("127.0.0.1", "localhost")
_SHARE = 5.0  # a reading is followed by a pause of this many times its length

Make = Callable[[], Payload]


class Shown(NamedTuple):
    """What the page shows now."""

    version: int
    """One more with every change."""
    payload: str
    whole: str
    """The HTML file."""


class Live:
    """Reads a run again and again, while there is somebody who looks at it."""

    def __init__(self, run: Run, make: Make) -> None:
        """make: what the page shows, read anew."""
        self._run = run
        self._make = make
        self._lock = threading.Lock()
        self._state = self._look()
        self._next = 0.0
        self._shown = self._read(0)

    def now(self) -> Shown:
        """What the page shows; read anew if the run has grown and the last reading is over for a
        while."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                state = self._look()
                if state != self._state:
                    self._shown, self._state = self._read(self._shown.version + 1), state
                seconds = time.monotonic() - began
                self._next = began + seconds + max(PAUSE, _SHARE * seconds)
            return self._shown

    def _look(self) -> object:
        """Differs when the run has something new."""
        return self._run.steps[-1:], len(self._run), len(self._run.alerts), self._run.closed

    def _read(self, version: int) -> Shown:
        payload = self._make()
        return Shown(version, payload.pack(), page.fill(self._run, payload, version))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the page and of its data, and nothing else."""

    server_version = "hookstats"
    sys_version = ""

    def __init__(self, live: Live, hosts: frozenset[str] | None, *args: object) -> None:
        """hosts: the only names that the page is asked for by; None: any."""
        self._live = live
        self._hosts = hosts
        super().__init__(*args)  # type: ignore[arg-type]  # what the server gives

    def do_GET(self) -> None:
        # A page of another site, whose name was made to lead here, must not read the run.
        host = self.headers.get("Host", "").partition(":")[0]  # browsers leave out port 80
        if self._hosts is not None and host not in self._hosts:
            self.send_error(HTTPStatus.FORBIDDEN, "this is served under another name")
            return
        path, _, query = self.path.partition("?")
        if path not in ("/", "/data"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            shown = self._live.now()
        except (OSError, ValueError) as error:  # a part that is damaged, or just deleted
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the run cannot be read", str(error))
            return
        if path == "/":
            self._answer(shown.whole, "text/html; charset=utf-8", shown.version)
        elif query == f"after={shown.version}":
            self._answer("", "text/plain", shown.version)
        else:
            self._answer(shown.payload, "text/plain", shown.version)

    def _answer(self, text: str, kind: str, version: int) -> None:
        content = gzip.compress(text.encode(), 1)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Version", str(version))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's."""


class _Server(ThreadingHTTPServer):
    """Says nothing of those who go away before they have their answer: browsers do."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless it is the other side that is gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def server(run: Run, make: Make, host: str, port: int) -> ThreadingHTTPServer:
    """A server of the page of a run, bound to an address but not yet answering; port 0: any.

    Raises:
        OSError: the address cannot be had.
        ValueError: the run has no steps.
    """
    hosts = frozenset(_LOOPBACK) if host in _LOOPBACK else None
    handler = partial(_Handler, Live(run, make), hosts)
    return _Server((host, port), handler)
