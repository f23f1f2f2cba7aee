"""Joins the C++ files of a library into one for the compiler.

Most of the time that the C++ hooks' files take is that of torch's headers, which are read once so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setuptools import Extension


def join(extension: Extension, root: Path, folder: Path, torch: str) -> None:
    """Has `extension` compile one file of `folder` that includes its files.

    It names the version of torch, for which it is compiled again: compilers do not tell which
    system headers they read, and torch's are system headers here.

    Sources are relative to `root`, which `folder` lies in, and below the first of the include
    directories. A file whose text would stay is not written again: what was compiled of it may
    still serve.
    """
    files = [str(file) for file in extension.sources]
    within = extension.include_dirs[0]
    names = [(root / file).relative_to(within).as_posix() for file in files]
    text = f"// for torch {torch}\n" + "".join(f'#include "{name}"\n' for name in names)
    whole = folder / f"{extension.name.rpartition('.')[2]}.cpp"
    if not whole.is_file() or whole.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)
    extension.depends += files
    extension.sources = [str(whole.relative_to(root))]  # as setuptools wants them
