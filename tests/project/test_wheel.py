"""`make wheel`: what is in the wheel, what it says of itself, and that it serves where it is
installed."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import torch
from support.builds import run, venv_python
from support.paths import ROOT

import hookstats
from hookstats.kernels import native

pytestmark = pytest.mark.full  # three minutes of CPU

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"

USE = """
import hookstats as hs, torch
from hookstats.kernels import native

s = hs.channel_stats(torch.arange(6.0).reshape(3, 2), channel_dim=1)
model = torch.nn.Linear(2, 2)
with hs.watch(model) as w:
    model(torch.ones(3, 2)).sum().backward()
    w.step()
print(hs.__file__, s.mean.tolist(), native.hooks is not None, len(w.latest.keys()) > 0)
"""


@pytest.fixture
def wheel(project: Path) -> Path:
    """What `make wheel` makes of a copy of the sources."""
    pytest.importorskip("auditwheel", reason="the extra `wheel` is not installed")
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, project)
    # Told that everything is installed, make installs nothing here.
    stamp = f"{sys.prefix}/.hookstats/wheel"
    command = ("make", f"VENV={sys.prefix}", "-o", stamp, "wheel")
    done = run(*command, cwd=project, CUDA_HOME="/none", MAKEFLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (project / "dist").iterdir()
    assert done.stdout.splitlines()[-1] == f"dist/{made.name}"
    return made


def headers(archive: zipfile.ZipFile, name: str) -> Message:
    """A file of the wheel's metadata."""
    return email.message_from_bytes(
        archive.read(f"hookstats-{hookstats.__version__}.dist-info/{name}")
    )


def check_metadata(archive: zipfile.ZipFile, tags: set[str]) -> None:
    said = headers(archive, "METADATA")
    assert (said["Name"], said["Version"]) == ("hookstats", hookstats.__version__)
    assert said["Requires-Python"] == ">=3.10"
    assert said["License-Expression"] == "BSD-3-Clause"
    needed = said.get_all("Requires-Dist", [])
    assert {"torch>=2.10", "numpy>=1.24"} <= set(needed)
    assert all("extra ==" in line for line in set(needed) - {"torch>=2.10", "numpy>=1.24"})
    assert {"cli", "store"} <= set(said.get_all("Provides-Extra", []))
    kind = headers(archive, "WHEEL")
    assert kind["Root-Is-Purelib"] == "false"
    assert set(kind.get_all("Tag", [])) == tags
    entry = archive.read(f"hookstats-{hookstats.__version__}.dist-info/entry_points.txt")
    assert b"hookstats = hookstats.cli:main" in entry


def test_the_wheel_is_right_and_serves(wheel: Path, tmp_path: Path) -> None:
    # One test: a build takes a minute.
    name, version, *python, platforms = wheel.stem.split("-")
    assert (name, version, python) == ("hookstats", hookstats.__version__, [TAG, TAG])
    assert all(platform.startswith("manylinux_2_") for platform in platforms.split("."))
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
        check_metadata(archive, {f"{TAG}-{TAG}-{platform}" for platform in platforms.split(".")})
    hooks = f"hookstats/_hooks{sysconfig.get_config_var('EXT_SUFFIX')}"
    # Nothing of torch or of the system: auditwheel would put it into hookstats.libs.
    assert {file for file in held if ".so" in file} == {"hookstats/_C.abi3.so", hooks}
    assert {file.partition("/")[0] for file in held} == {
        "hookstats",
        f"hookstats-{hookstats.__version__}.dist-info",
    }
    assert not [file for file in held if file.startswith("hookstats/") and "test" in file]

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = (sys.executable, "-m", "pip", "--python", venv_python(venv), "install", "--no-deps")
    installed = run(*pip, wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    used = run(venv_python(venv), "-W", "error", "-c", USE, cwd=tmp_path, PYTHONPATH="")
    file = packages / "hookstats" / "__init__.py"
    assert used.stdout == f"{file} [2.0, 3.0] {native.hooks is not None} True\n", used.stderr
    told = run(venv / "bin" / "hookstats", "--version", cwd=tmp_path, PYTHONPATH="")
    assert hookstats.__version__ in told.stdout, told.stderr
