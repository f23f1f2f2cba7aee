"""warn(): a warning that never raises, from whatever thread."""

from __future__ import annotations

import logging
import warnings

from hookstats.stats.printable import printable


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; where a filter makes an error of it, which no one could catch, log it as one.

    The message may have names and errors from anywhere: it is made `printable`.
    """
    message = printable(message, lines=True)
    try:
        warnings.warn(message, category, stacklevel=2)
    except Warning:
        logging.getLogger("hookstats").error(message)
