"""python headers.py FOLDER VERSION...: the headers of other versions of torch, for their C++ hooks.

Downloads each torch for the running Python without what it depends on, keeps its headers in
FOLDER/VERSION and deletes the rest. Versions that are there already stay.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def fetch(version: str, folder: Path) -> Path:
    """The folder with `torch/include` of this version."""
    target = folder / f"{version}-{sys.implementation.cache_tag}"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        download += ["--no-cache-dir", "--only-binary=:all:", "--dest", temporary]
        subprocess.run([*download, f"torch=={version}"], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/include/")]
            archive.extractall(Path(temporary) / "out", names)
        (Path(temporary) / "out").rename(target)
    return target


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for version in sys.argv[2:]:
        print(fetch(version, folder).resolve(), flush=True)


if __name__ == "__main__":
    main()
