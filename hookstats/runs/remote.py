"""Runs at URLs, such as s3://bucket/runs/a: their local directories, and copies for readers.

fsspec reaches them. What writes a run writes into a local directory, whose files `watching/upload`
uploads; what reads a run reads a local copy. Both are in `cache()`, apart from each other.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard
from uuid import uuid4

from hookstats.runs.format import RUN_JSON, RUN_LOCK, owner, rank_json
from hookstats.stats.messages import error_text

SECONDS = 5.0
"""The least seconds between two looks at a URL."""
_TOKENS = ".copy.json"
"""The file of a local copy that says which version of each file it has."""
_TRIES = 2
"""How often files may be thinned between being listed and being downloaded."""


def is_url(path: object) -> TypeGuard[str]:
    """Whether fsspec is to reach a path."""
    return isinstance(path, str) and "://" in path


def cache() -> Path:
    """The folder of all local directories: HOOKSTATS_CACHE, or else ~/.cache/hookstats."""
    return Path(os.environ.get("HOOKSTATS_CACHE") or Path("~/.cache/hookstats")).expanduser()


def written(url: str) -> Path:
    """The local directory of a run that is written to a URL."""
    return _below("written", url)


def _below(folder: str, url: str) -> Path:
    names = [name for name in re.split(r"[/:]+", url) if name not in ("", ".", "..")]
    return cache().joinpath(folder, *names)


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        ImportError: fsspec, or what it needs for such URLs, is not installed.
        ValueError: there are no such URLs.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(f"{url} needs fsspec ({error}): pip install fsspec") from error
    system, root = url_to_fs(url)
    return system, str(root).rstrip("/")


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """In this context, any error of a file system is an OSError with the URL."""
    try:
        yield
    except (OSError, ValueError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{url}: {error_text(error)}") from error


def _exists(system: Any, path: str) -> bool:
    system.invalidate_cache()  # others write there
    try:
        system.info(path)  # `exists` of some file systems takes any error for an absent file
    except FileNotFoundError:
        return False
    return True


def is_taken(url: str) -> bool:
    """Whether there is a run at a URL, or one was begun here.

    Raises:
        OSError: the URL cannot be reached.
    """
    system, root = file_system(url)
    with reaching(url):
        return (written(url) / RUN_JSON).exists() or _exists(system, f"{root}/{RUN_JSON}")


def runs_at(url: str) -> list[str]:
    """The URLs of the runs below a URL, itself included.

    Raises:
        OSError: the URL cannot be reached.
    """
    system, root = file_system(url)
    with reaching(url):
        system.invalidate_cache()
        files = system.find(root)
    inside = sorted(path.removeprefix(root).strip("/") for path in files)
    base = f"{url.rstrip('/')}/" if root else url
    found = [base + name.removesuffix(RUN_JSON) for name in inside if Path(name).name == RUN_JSON]
    return [run.removesuffix("/") for run in found]


def directory_for(url: str, rank: int, *, append: bool, overwrite: bool) -> Path:
    """The local directory of a run that a rank is to write to a URL. For a run that is to be
    continued, files that only the URL has are downloaded.

    Raises:
        FileExistsError: the rank has written a run there, which is neither continued nor replaced.
        OSError: the URL cannot be reached.
    """
    system, root = file_system(url)
    path = written(url)
    with reaching(url):
        if append:
            update(path, system, root, is_ours=True)
        elif not overwrite and _exists(system, f"{root}/{rank_json(rank)}"):
            raise FileExistsError(
                errno.EEXIST,
                f"out = {url!r}: holds another run, expected a new or empty directory; "
                "overwrite=True replaces the run, append=True continues it",
            )
    return path


def files_at(system: Any, root: str) -> dict[str, dict[str, Any]]:
    """What a file system says of each file of the run at `root`, by its path in the run."""
    system.invalidate_cache()
    found: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError):  # what some say of an empty folder
        found = system.find(root, detail=True)
    by_name = {path.removeprefix(root).strip("/"): info for path, info in found.items()}
    return {name: info for name, info in by_name.items() if owner(name) is not None}


def update(path: Path, system: Any, root: str, *, is_ours: bool = False) -> None:
    """Bring the local directory `path` to what is at `root`: only what changed is downloaded.

    is_ours: whether the directory is what `root` is uploaded from: then only missing files are.
    """
    from filelock import FileLock

    path.mkdir(parents=True, exist_ok=True)
    with FileLock(path / RUN_LOCK):
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # thinned since it was listed
                _update(path, system, root, is_ours)
                return
        _update(path, system, root, is_ours)


def _update(path: Path, system: Any, root: str, is_ours: bool) -> None:
    there = {name: repr(info) for name, info in files_at(system, root).items()}
    try:
        here: dict[str, str] = json.loads((path / _TOKENS).read_bytes())
    except (OSError, ValueError):
        here = {}
    if is_ours:
        here = there
    new = [n for n, token in there.items() if here.get(n) != token or not (path / n).exists()]
    temporary = [path / f".{uuid4().hex}.tmp" for _ in new]
    try:
        if new:
            system.get([f"{root}/{name}" for name in new], [str(file) for file in temporary])
        for name, file in zip(new, temporary, strict=True):
            (path / name).parent.mkdir(exist_ok=True)
            file.replace(path / name)
    finally:
        for file in temporary:
            file.unlink(missing_ok=True)
    for name in here.keys() - there.keys():
        (path / name).unlink(missing_ok=True)
    if not is_ours:
        (path / _TOKENS).write_text(json.dumps(there))


class Copy:
    """The local copy of a run at a URL, for reading.

    Raises:
        FileNotFoundError: there is no run.
        OSError: the URL cannot be reached.
        ImportError, ValueError: as of `file_system`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._root = file_system(url)
        self.path = _below("read", url)
        self._looked = -math.inf
        with reaching(url):
            if not _exists(self._system, f"{self._root}/{RUN_JSON}"):
                raise FileNotFoundError(errno.ENOENT, f"path = {url!r}: no such run")
        self.refresh()

    def refresh(self) -> None:
        """Bring the copy up to date, at most every `SECONDS`.

        Raises:
            OSError: the URL cannot be reached.
        """
        if time.monotonic() < self._looked + SECONDS:
            return
        with reaching(self._url):
            update(self.path, self._system, self._root)
        self._looked = time.monotonic()
