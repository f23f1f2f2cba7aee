"""Files of a run directory: written whole or not at all, read with every error naming the file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from hookstats.runs.format import FormatError, require_pyarrow
from hookstats.stats.printable import printable

_LETTERS = 1000  # of an error, in the message that names the file


def write_file(path: Path, content: Any, rank: int, *, new: bool = False) -> None:
    """Put `content`, bytes or a buffer, on the disk under a temporary name, then rename the file.

    The temporary name has the `rank` of the writer, so that the rank can remove what a kill leaves.
    With `new`, a name that is taken is a FileExistsError, even if another process takes the name at
    the same time.
    """
    temporary = path.with_name(f".{rank:05d}.{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _link(temporary, path)
        else:
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if os.name == "posix":  # elsewhere a directory cannot be opened
        _sync_directory(path.parent)


def _link(temporary: Path, path: Path) -> None:
    """Rename to a name that must be free."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)
    else:
        temporary.unlink()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that `write_file` has not finished."""
    return name.startswith(".") and name.endswith(".tmp")


def remove_temporaries(directory: Path, rank: int) -> int:
    """Remove what killed writers of `rank` left; returns the bytes that could not be removed."""
    left = 0
    for path in directory.iterdir():
        if is_temporary(path.name) and path.name.startswith(f".{rank:05d}."):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                with suppress(OSError):
                    left += path.stat().st_size
    return left


def to_json(what: str, content: Any) -> bytes:
    """`content` as indented JSON; a ValueError names `what` if JSON cannot represent it."""
    try:
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}: expected values that JSON can represent ({error})") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file; call this within `naming`."""
    return json.loads(path.read_bytes())


class _DamagedError(ValueError):
    """The content of a file is not what it should be; the message names the file."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """In this context, a fault in the content of the file is a ValueError that names the file."""
    try:
        yield
    except (FormatError, _DamagedError):  # they name the file
        raise
    except (
        require_pyarrow().ArrowException,
        *(OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError),
    ) as error:
        if isinstance(error, MemoryError):  # as some of Arrow's are
            raise
        # Not the content: missing, not permitted. Arrow calls a bad offset an invalid argument.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            error.filename = error.filename or str(path)
            raise
        raise _DamagedError(
            f"{printable(str(path))}: damaged, or not written by hookstats ({_said(error)})"
        ) from error


def _said(error: Exception) -> str:
    """An error in at most `_LETTERS` letters: some repeat the content of the file."""
    said = repr(error)
    half = _LETTERS // 2
    return said if len(said) <= _LETTERS else f"{said[:half]} ... {said[-half:]}"
