"""Builds the operators, _C, and the C++ hooks, _hooks.

The operators use LibTorch's stable ABI: one build serves every torch >= 2.10. The hooks are bound
to the torch and the Python they were built with; without them the Python hooks serve.

Environment: CXX names the compiler, MAX_JOBS bounds the parallel compilations,
HOOKSTATS_WERROR=1 makes warnings errors.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "_build"))

import toolchain  # noqa: E402

WERROR = os.environ.get("HOOKSTATS_WERROR", "0") not in ("", "0")
# Instruction sets are chosen inside the sources, so no flag here names a processor.
COMPILE_FLAGS = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
STABLE_ABI_FLAGS = [
    "-DTORCH_TARGET_VERSION=0x020a000000000000",  # torch 2.10
    "-DPy_LIMITED_API=0x030A0000",  # Python 3.10
]


def sources(*folders: str) -> list[str]:
    """The C++ files of the folders of csrc, relative to the project as setuptools wants them."""
    files = (file for folder in folders for file in (ROOT / "csrc" / folder).glob("*.cpp"))
    return sorted(str(file.relative_to(ROOT)) for file in files)


def library(name: str, folders: tuple[str, ...], flags: list[str], **options: Any) -> Extension:
    """An extension of the C++ files of the folders."""
    return Extension(
        f"hookstats.{name}",
        sources(*folders),
        include_dirs=[str(ROOT / "csrc")],
        depends=[str(file.relative_to(ROOT)) for file in (ROOT / "csrc").rglob("*.h")],
        extra_compile_args=COMPILE_FLAGS + flags + ["-Werror"] * WERROR,
        language="c++",
        **options,
    )


def operators() -> Extension:
    """The operator library: no Python module, loaded by torch.ops.load_library."""
    return library("_C", ("ops", "cpu"), STABLE_ABI_FLAGS, py_limited_api=True)


def hooks() -> Extension:
    """The C++ hooks: a Python module."""
    return library("_hooks", ("hooks",), [], libraries=["torch_python"])


class BuildLibraries(build_ext):
    """Compiles by torch's build_ext, importing torch only then: metadata and sdist need none."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Editable installs name a temporary folder, where nothing would be left to build upon.
        python = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        self.build_temp = str(ROOT / "build" / f"temp.{python}")

    def build_extensions(self) -> None:
        found = toolchain.expose_torch()
        compiler = toolchain.require_compiler()
        import torch
        from torch.utils import cpp_extension

        for extension in self.extensions:
            # As system headers: hookstats' warnings are its own.
            for folder in cpp_extension.include_paths():
                extension.extra_compile_args += ["-isystem", folder]
            extension.library_dirs += cpp_extension.library_paths()
            extension.libraries += ["c10", "torch", "torch_cpu"]

        using = f"with {compiler} against torch {found.version}"
        self._compile(self.extensions[:1])
        print(f"hookstats: built the CPU operators {using}")
        try:
            self._compile(self.extensions[1:])
        except Exception as error:  # they use what torch keeps the right to change
            if WERROR:
                raise
            self.extensions = self.extensions[:1]
            problem = str(error).partition("\n")[0]
            print(f"hookstats: C++ hooks: not built, the Python hooks will serve ({problem})")
        else:
            print(f"hookstats: built the C++ hooks {using}")
        reason = "torch has no CUDA" if torch.version.cuda is None else "no CUDA kernels yet"
        print(f"hookstats: CUDA: not built ({reason})")

    def _compile(self, extensions: list[Extension]) -> None:
        from torch.utils import cpp_extension

        command = cpp_extension.BuildExtension(self.distribution)
        command.__dict__.update(vars(self))
        command.extensions = extensions
        command.force = command.use_ninja or self.force  # ninja itself knows what is out of date
        command.build_extensions()


setup(
    ext_modules=[operators(), hooks()],
    cmdclass={"build_ext": BuildLibraries},
)
