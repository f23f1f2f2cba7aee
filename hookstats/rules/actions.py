"""Actions: what is told of each incident, such as a Slack channel; callables among `rules`.

``hs.watch(model, optimizer, rules=["default", hs.actions.Slack(url)])`` sends one message for each
incident that is worse than a note, when it begins. Any callable that takes an Incident is an
action. Each action is called on a separate thread: one that is slow, hangs or fails leaves the
training alone. Of several ranks, the first one calls them.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hookstats.records.alerts import Incident
from hookstats.stats.printable import printable

OnIncident = Callable[[Incident], object]
"""What is called with each incident, when it begins."""

DELAYS = (1.0, 5.0, 30.0)
"""The seconds before each further try to send a message."""

_BUSY = (408, 425, 429)
"""The codes below 500 of a server that may take the same message later."""


class NotSentError(RuntimeError):
    """A message was not sent; the error says why, and nothing of the URL but its host."""


class Webhook:
    """Posts each incident to a URL, as a JSON object.

    The object has `text`, which says all in words, `severity`, `message`, `advice`, `rule`, `site`,
    `kind`, `step`, `since`, `consequences` (how many there were at once), `run` (the directory, or
    null), `host`, and `url` (that of the W&B run, where there is one, or null).

    A message that the server does not take (500 and above, 408, 425, 429), or that does not reach
    it, is sent again after 1, 5 and 30 seconds. Redirects are refused. The URL is a secret: neither
    a message nor a log nor the run has more of it than the host.

    Args:
        url: http:// or https://
        timeout: the seconds that each try waits for the server.

    Raises:
        ValueError: an argument is something else.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url: expected http:// or https:// and a host")
        if not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ValueError(f"timeout = {timeout!r}: expected seconds, above 0")
        self._url = url
        self._host = parts.hostname
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._host})"

    def __call__(
        self,
        incident: Incident,
        run: Path | None = None,
        closing: threading.Event | None = None,
    ) -> None:
        """Send a message.

        run: the run directory. closing: once set, there is one more try, and no pause before it.

        Raises:
            NotSentError: all tries failed.
        """
        body = json.dumps(self._body(incident, run)).encode()
        closing = threading.Event() if closing is None else closing
        for delay in (*DELAYS, None):
            is_last = delay is None or closing.is_set()
            why, may_pass = self._post(body)
            if not why:
                return
            if is_last or not may_pass:
                raise NotSentError(why)
            closing.wait(delay)

    def _body(self, incident: Incident, run: Path | None) -> dict[str, Any]:
        cause = incident.cause
        return {
            "text": _text(incident, run),
            "severity": incident.severity,
            "message": printable(incident.message),
            "advice": cause.advice,
            "rule": cause.rule,
            "site": cause.site,
            "kind": cause.kind,
            "step": cause.step,
            "since": cause.since,
            "consequences": len(incident.consequences),
            "run": None if run is None else str(run),
            "host": socket.gethostname(),
            "url": _link(),
        }

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why a try failed, "" if it did not, and whether another one may succeed."""
        # Here, as they take longer to import than all rules.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NoRedirects(HTTPRedirectHandler):
            """Has a redirect be an error: whoever it leads to is not to have the message."""

            def redirect_request(self, *args: Any, **kwargs: Any) -> None:
                return None

        opener = build_opener(NoRedirects)
        request = Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with opener.open(request, timeout=self._timeout):
                return "", False
        except HTTPError as error:
            code = error.code
            error.close()
            return f"{self._host} answered {code}", code >= 500 or code in _BUSY
        except (OSError, HTTPException, ValueError) as error:
            # The error's own text may have the URL.
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return f"{self._host} did not answer within {self._timeout:g} s", True
            why = reason.strerror if isinstance(reason, OSError) else None
            return f"{self._host} was not reached ({why or type(reason).__name__})", True


class Slack(Webhook):
    """Posts each incident to a channel of Slack, by the URL of an incoming webhook.

    Mattermost, Rocket.Chat and others that take the same messages work, too. See `Webhook`.
    """

    def _body(self, incident: Incident, run: Path | None) -> dict[str, Any]:
        text = _text(incident, run)
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(character, entity)
        return {"text": text}


def wandb(incident: Incident) -> None:
    """Sends each incident as an alert of the W&B run that is under way, which W&B mails or posts.

    Raises:
        NotSentError: no W&B run is under way.
    """
    run = _run()
    if run is None:
        raise NotSentError("no W&B run is under way")
    level = "ERROR" if incident.severity == "error" else "WARN"
    run.alert(f"hookstats: {incident.cause.rule}", _text(incident, None), level)


def _text(incident: Incident, run: Path | None) -> str:
    """An incident in words: what is wrong, what helps, and where to look."""
    lines = [f"{incident.severity}: {printable(incident.message)}"]
    if incident.cause.advice:
        lines.append(f"what helps: {incident.cause.advice}")
    if run is not None:
        lines.append(f"run: {printable(str(run))} on {socket.gethostname()}")
    if url := _link():
        lines.append(url)
    return "\n".join(lines)


def _link() -> str | None:
    """The page of the W&B run that is under way, if there is one."""
    url = getattr(_run(), "url", None)
    return url if isinstance(url, str) else None


def _run() -> Any:
    """The W&B run that is under way; None where there is none, or wandb is not imported."""
    return getattr(sys.modules.get("wandb"), "run", None)
