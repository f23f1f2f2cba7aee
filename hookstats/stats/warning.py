"""warn(): a warning that never raises, from whatever thread."""

from __future__ import annotations

import logging
import warnings

from hookstats.stats.printable import printable


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; if a filter turns the warning into an error, which nobody could catch, log an error.

    The message may hold names and errors from anywhere: it is made `printable`.
    """
    message = printable(message, lines=True)
    try:
        warnings.warn(message, category, stacklevel=2)
    except Warning:
        logging.getLogger("hookstats").error(message)
