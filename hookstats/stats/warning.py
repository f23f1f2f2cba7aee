"""warn(): a warning that never raises, from whatever thread."""

from __future__ import annotations

import logging
import warnings


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; if a filter turns the warning into an error, which nobody could catch, log an error."""
    try:
        warnings.warn(message, category, stacklevel=2)
    except Warning:
        logging.getLogger("hookstats").error(message)
