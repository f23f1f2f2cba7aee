"""Files of a run directory: written whole or not at all, read with every error naming the file."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from hookstats.runs.format import FormatError, require_pyarrow
from hookstats.stats.printable import printable

_LETTERS = 1000  # of an error, in the message that names the file


class RunDirectory:
    """The directory of a run that is being written, which stays the one that it was at first.

    Another directory that takes its place, by a link that is pointed elsewhere or after the run was
    removed, gets no file. Where the process changes its own directory, the path stays.
    """

    def __init__(self, path: Path) -> None:
        """path: an existing directory."""
        self.path = path.resolve()
        # While it is open, no other directory can have its inode.
        descriptor = os.open(self.path, os.O_RDONLY)
        self._descriptor = descriptor
        self.release = weakref.finalize(self, os.close, descriptor)
        """Closes what it holds of the directory; nothing can be written then."""
        self.release.atexit = False  # the last steps are written as the interpreter ends

    def check(self) -> None:
        """Refuse to go on where the path leads elsewhere.

        Raises:
            FileNotFoundError: the directory was moved or removed.
            FileExistsError: another directory has its place.
        """
        if not os.path.samestat(os.fstat(self._descriptor), self.path.stat()):
            raise FileExistsError(
                errno.EEXIST,
                "another directory has taken the place of the one in which this run began",
                str(self.path),
            )

    def write(self, name: str, content: Any, rank: int, *, new: bool = False) -> None:
        """Put `content`, bytes or a buffer, on the disk under a temporary name, then rename the
        file to `name`.

        The temporary name has the `rank` of the writer, so that the rank can remove what a kill
        leaves. With `new`, a name that is taken is a FileExistsError. Errors are also those of
        `check`.
        """
        path = self.path / name
        temporary = path.with_name(f".{rank:05d}.{path.name}.{uuid4().hex[:8]}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # A directory that takes the place later does not have the temporary file.
            self.check()
            if new and path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do it unasked
            raise
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
    """`content` as JSON on one line; a ValueError names `what` if JSON cannot represent it."""
    try:
        # Without indents, which have json encode in Python: that takes five times as long.
        return (json.dumps(content, ensure_ascii=False) + "\n").encode()
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
