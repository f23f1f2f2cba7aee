"""Libraries whose file ends too early are known before they are loaded, which would be the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookstats.kernels.ops import LIBRARIES
from hookstats.kernels.whole import cut_short

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF files are Linux's")


@pytest.mark.parametrize("pattern", ["_C.*so", "_hooks.*so"])
def test_a_library_is_whole_or_cut_short(pattern: str, tmp_path: Path) -> None:
    (library,) = LIBRARIES.glob(pattern)
    assert cut_short(library) is None
    content, copy = library.read_bytes(), tmp_path / "copy.so"
    for length in (64, 1000, len(content) // 4, len(content) // 2, len(content) - 1):
        copy.write_bytes(content[:length])
        assert cut_short(copy) == f"{length} of {len(content)} bytes"


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\1" + bytes(80), b"no library" * 9])
def test_other_files_are_left_to_the_loader(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    assert cut_short(tmp_path / "other") is None
