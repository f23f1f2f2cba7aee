"""Builds the operators, _C, their CUDA kernels, _cuda, and the C++ hooks, _hooks.

The operators use LibTorch's stable ABI: one build serves every torch >= 2.10. The hooks are bound
to the torch and the Python they were built with; without them the Python hooks serve. The CUDA
kernels are built if torch has CUDA and nvcc is found; they need no GPU and, with FORCE_CUDA=1, no
torch with CUDA.

Environment: CXX names the compiler, MAX_JOBS bounds the parallel compilations,
HOOKSTATS_WERROR=1 makes warnings errors. CUDA_HOME is the folder of the CUDA toolkit, FORCE_CUDA=1
ends the build if the CUDA kernels cannot be built, TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX" says for
which GPUs to build them: by default for those of this machine, and for the usual ones where it has
none. HOOKSTATS_HEADERS names folders with headers of other versions of torch (_build/headers.py),
for which the C++ hooks are built, too, as `make wheels` does.
"""

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "_build"))

import beside  # noqa: E402
import joined  # noqa: E402
import nvcc  # noqa: E402
import overheard  # noqa: E402
import toolchain  # noqa: E402

toolchain.require_setuptools()  # before anything is imported from it

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

WERROR = os.environ.get("HOOKSTATS_WERROR", "0") not in ("", "0")
# Instruction sets are chosen inside the sources, so no flag here names a processor.
COMPILE_FLAGS = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
STABLE_ABI_FLAGS = [
    "-DTORCH_TARGET_VERSION=0x020a000000000000",  # torch 2.10
    "-DPy_LIMITED_API=0x030A0000",  # Python 3.10
]


_NO_NINJA = "no ninja: the files are compiled one by one; `pip install ninja` makes builds faster"

NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-g0,-Wall,-Wextra",
    *(["-Werror=all-warnings"] * WERROR),
]


def sources(*patterns: str) -> list[Path]:
    """The files of csrc that match."""
    return sorted(file for pattern in patterns for file in (ROOT / "csrc").glob(pattern))


def library(name: str, files: list[Path], flags: list[str], **options: Any) -> Extension:
    """An extension of C++ files."""
    return Extension(
        f"hookstats.{name}",
        [str(file.relative_to(ROOT)) for file in files],  # as setuptools wants them
        include_dirs=[str(ROOT / "csrc")],
        depends=[str(file.relative_to(ROOT)) for file in (ROOT / "csrc").rglob("*.h")],
        extra_compile_args=COMPILE_FLAGS + flags + ["-Werror"] * WERROR,
        language="c++",
        **options,
    )


def operators() -> Extension:
    """The operator library: no Python module, loaded by torch.ops.load_library.

    setuptools sorts the files by name: the longest, cpu/kernel_avx*.cpp, are among the first.
    """
    files = [file for file in sources("ops/*.cpp", "cpu/*.cpp") if not is_of_cuda(file)]
    return library("_C", files, STABLE_ABI_FLAGS, py_limited_api=True)


def kernels() -> Extension:
    """The CUDA kernels and their operators: a separate library, as _C is; the objects of nvcc are
    added once they are known."""
    files = [file for file in sources("ops/*.cpp") if is_of_cuda(file)]
    shared = sources("ops/arguments.cpp")
    flags = [*STABLE_ABI_FLAGS, "-DUSE_CUDA"]
    return library("_cuda", shared + files, flags, py_limited_api=True)


def is_of_cuda(file: Path) -> bool:
    """Whether a file of csrc/ops belongs to the CUDA library alone."""
    return file.stem.endswith("_cuda")


def hooks() -> Extension:
    """The C++ hooks: a Python module."""
    # Torch's headers include those of the operators that they use, not of all 1,600.
    flags = ["-DAT_PER_OPERATOR_HEADERS"]
    return library("_hooks", sources("hooks/*.cpp"), flags, libraries=["torch_python"])


def hooks_for(headers: Path) -> Extension:
    """The C++ hooks for another version of torch, "2.12.1-cpython-311", by its headers.

    What they use of torch's libraries is found when they are loaded; to be linked with libraries of
    the same names, be it of another version, has them found there.
    """
    major, minor, _ = headers.name.split(".", 2)
    extension = hooks()
    extension.name = f"hookstats.torch_{major}_{minor}._hooks"
    include = headers / "torch" / "include"
    for folder in (include, include / "torch" / "csrc" / "api" / "include"):
        extension.extra_compile_args += ["-isystem", str(folder)]
    return extension


def _fail(reason: str) -> None:
    raise RuntimeError(reason)


class BuildLibraries(build_ext):
    """Compiles by torch's build_ext, and imports torch only then: metadata and sdist need none."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Editable installs name a temporary folder, where nothing would be left to build upon.
        python = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        self.build_temp = str(ROOT / "build" / f"temp.{python}")
        os.environ["LC_ALL"] = "C"  # errors are looked for in what compilers say
        os.environ.setdefault("CXX", "c++")  # or else Python's own would link

    def build_extensions(self) -> None:
        found = toolchain.expose_torch()
        compiler = toolchain.require_compiler()
        toolkit, forced = nvcc.find_nvcc(), nvcc.is_forced()
        limited = toolchain.limit_jobs()
        no_nvcc = "no nvcc: install the CUDA toolkit, or set CUDA_HOME to its folder"
        if forced and toolkit is None:
            raise SystemExit(f"hookstats: FORCE_CUDA=1, and {no_nvcc}")
        targets = [] if toolkit is None else nvcc.targets(toolkit)
        import torch
        from torch.utils import cpp_extension

        for extension in self.extensions:
            # As system headers: hookstats' warnings are its own.
            for folder in cpp_extension.include_paths():
                extension.extra_compile_args += ["-isystem", folder]
            extension.library_dirs += cpp_extension.library_paths()
            extension.libraries += ["c10", "torch", "torch_cpu"]

        using = f"with {compiler} against torch {found.version}"
        of_cpu, of_hooks, of_cuda, *others = self.extensions
        joined.join(of_hooks, ROOT, Path(self.build_temp), found.version)
        for remark in (limited, None if cpp_extension.is_ninja_available() else _NO_NINJA):
            if remark is not None:
                print(f"hookstats: {remark}")
        self.extensions = [of_cpu]
        # They use what torch keeps the right to change.
        made_hooks = self._start(of_hooks, toolchain.missing_headers())
        try:
            self._compile(of_cpu)
        except Exception as error:
            beside.stop()  # so that what follows is the last line
            raise SystemExit(f"hookstats: CPU operators: not built ({error})") from None
        print(f"hookstats: built the CPU operators {using}")
        what = f"C++ hooks {using}"
        self._attempt(of_hooks, what, "the Python hooks", made_hooks, WERROR)
        for other in others:
            joined.join(other, ROOT, Path(self.build_temp) / other.name, found.version)
            self._compile(other)
            self.extensions.append(other)
            print(f"hookstats: built C++ hooks: {other.name}")
        if torch.version.cuda is None and not forced:
            reason = "torch has no CUDA; FORCE_CUDA=1 builds them anyway"
            print(f"hookstats: CUDA kernels: not built ({reason})")
        elif toolkit is None:
            print(f"hookstats: CUDA kernels: not built ({no_nvcc})")
        else:
            made = f"for {' '.join(map(str, targets))} by nvcc {toolkit.version}"
            what = f"CUDA kernels {made}, {using}"
            strict = WERROR or forced
            newer = nvcc.warning_for(toolkit, torch.version.cuda)
            if newer is not None:
                print(f"hookstats: {newer}")
            made_cuda = partial(self._compile_cuda, of_cuda, toolkit)
            self._attempt(of_cuda, what, "the PyTorch fallback", made_cuda, strict)
        self._remove_others(Path(self.build_lib))

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        self._remove_others(ROOT)

    def _remove_others(self, folder: Path) -> None:
        """Removes what an earlier build left of libraries that this one did not build: it would be
        packed, and loaded."""
        left_out = {extension.name for extension in self.distribution.ext_modules or ()}
        for name in left_out - {extension.name for extension in self.extensions}:
            file: str = self.get_ext_filename(name)  # type: ignore[no-untyped-call]
            (folder / file).unlink(missing_ok=True)

    def _start(self, extension: Extension, lacking: str | None) -> Callable[[], None]:
        """Compiles beside what is compiled next: one file, which would keep one core alone.

        lacking: why it cannot be compiled, if that is known before.
        """
        if lacking is not None:
            return partial(_fail, lacking)
        compiling = partial(self._compile, extension)
        return compiling if os.environ["MAX_JOBS"] == "1" else beside.start(compiling)

    def _attempt(
        self, extension: Extension, what: str, instead: str, make: Callable[[], None], strict: bool
    ) -> None:
        """Has `make` compile a part with a substitute, `instead`; unless `strict`, it may fail."""
        try:
            make()
        except Exception as error:
            if strict:
                raise
            problem = str(error).partition("\n")[0]
            what = " ".join(what.split()[:2])
            print(f"hookstats: {what}: not built, {instead} will serve ({problem})")
        else:
            self.extensions.append(extension)
            print(f"hookstats: built the {what}")

    def _compile_cuda(self, extension: Extension, toolkit: nvcc.Nvcc) -> None:
        build = Path(self.build_temp) / "nvcc"
        objects = nvcc.compile_objects(
            toolkit, sources("cuda/*.cu"), ROOT / "csrc", build, NVCC_FLAGS
        )
        extension.extra_objects = [str(made) for made in objects]
        extension.extra_compile_args += ["-isystem", str(toolkit.home / "include")]
        extension.library_dirs.append(str(toolkit.home / "lib64"))
        # Static: torch brings a runtime of its own, maybe of another version.
        extension.libraries += ["cudart_static", "dl", "rt", "pthread"]
        # Torch's part for CUDA, which not every torch has to link with, comes with libtorch.
        extension.extra_link_args += ["-Wl,--no-as-needed", "-ltorch"]
        if any(Path(folder, "libtorch_cuda.so").is_file() for folder in extension.library_dirs):
            extension.extra_link_args.append("-ltorch_cuda")
        self._compile(extension)

    def _compile(self, extension: Extension) -> None:
        from torch.utils import cpp_extension

        command = cpp_extension.BuildExtension(self.distribution)
        command.__dict__.update(vars(self))
        command.extensions = [extension]
        # Of its own: a file may be in two libraries, compiled with other flags.
        command.build_temp = str(Path(self.build_temp) / extension.name.partition(".")[2])
        command.force = command.use_ninja or self.force  # ninja itself knows what is out of date
        problem: Exception | None = None
        with overheard.Overheard() as said:
            try:
                command.build_extensions()
            except Exception as error:
                problem = error
        if problem is not None:
            reason = overheard.first_error(said.lines) or str(problem).partition("\n")[0]
            raise RuntimeError(reason) from problem


HEADERS = os.environ.get("HOOKSTATS_HEADERS", "").split()

setup(
    ext_modules=[operators(), hooks(), kernels(), *(hooks_for(Path(one)) for one in HEADERS)],
    cmdclass={"build_ext": BuildLibraries},
)
