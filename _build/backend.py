"""The PEP 517 backend: that of setuptools, asking for torch only if the environment has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import toolchain

toolchain.require_setuptools()  # before anything is imported from it

from setuptools import build_meta  # noqa: E402
from setuptools.build_meta import (  # noqa: E402, F401 - hooks that stay setuptools' own
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The build requirements of a wheel, torch among them where none is installed."""
    return _torch_requirement() + build_meta.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The build requirements of an editable install, as those of a wheel."""
    return _torch_requirement() + build_meta.get_requires_for_build_editable(config_settings)


def _torch_requirement() -> list[str]:
    # Called before anything is downloaded: what would fail later fails here, alone in the output.
    toolchain.require_python()
    toolchain.require_compiler()
    torch = toolchain.find_torch()
    if torch is None:
        return [toolchain.TORCH_REQUIREMENT]
    toolchain.require_recent(torch)
    return []
