"""What docs/cuda.md says of ROCm: what hipify makes of the CUDA sources, and what it leaves."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.paths import ROOT
from torch.utils.hipify import hipify_python

CSRC = ROOT / "csrc"
SOURCES = sorted([*(CSRC / "cuda").iterdir(), *(CSRC / "ops").glob("*_cuda.*")])
KERNELS = [each for each in SOURCES if each.suffix == ".cuh" or each.name.startswith("kernels_")]
PIECES = ["no pieces", "one piece", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PIECES += ["ten", "eleven", "twelve"]


def section() -> str:
    """That of the docs, in one line."""
    (found,) = re.findall(r"^## ROCm$(.+?)^## ", (ROOT / "docs/cuda.md").read_text(), re.M | re.S)
    return " ".join(found.split())


def said(pattern: str) -> str:
    found = re.search(pattern, section())
    assert found is not None, f"docs/cuda.md no longer has {pattern!r}"
    return found[1]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def words_of(text: str) -> Counter[str]:
    return Counter(re.findall(r"(?:std::)?\w+", text))


class Turned(NamedTuple):
    """A source, and what hipify made of it."""

    before: str
    after: str


def lost(all_turned: Iterable[Turned]) -> set[str]:
    """The names in sources that hipify changed, but for CUDA's."""
    words = (words_of(each.before) - words_of(each.after) for each in all_turned)
    return {word for each in words for word in each if "cuda" not in word}


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Turned]:
    version = said(r"of torch ([\d.]+),")
    if not torch.__version__.startswith(f"{version}."):
        pytest.skip(f"the docs are about hipify of torch {version}")
    folder = tmp_path_factory.mktemp("hipify")
    copies = {each: folder / each.relative_to(ROOT) for each in SOURCES}
    for source, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    done = hipify_python.hipify(
        project_directory=str(folder),
        output_directory=str(folder),
        includes=[str(copy) for copy in copies.values()],
        is_pytorch_extension=True,
    )
    assert {Path(each) for each in done} == set(copies.values())
    made = {}
    for source, copy in copies.items():
        result = done[str(copy)]
        assert result.current_state == hipify_python.CurrentState.DONE, (source, result.status)
        made[source] = Turned(source.read_text(), Path(result.hipified_path).read_text())
    return made


def test_docs_are_about_the_torch_that_tests_have() -> None:
    pinned = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert [each.rsplit(".", 1)[0] for each in pinned] == [said(r"of torch ([\d.]+),")]


def test_calls_that_stay_are_those_of_the_docs(turned: dict[Path, Turned]) -> None:
    """A new call that hipify does not know has to be in the docs."""
    is_call = re.compile(r"cu(?:da)?[A-Z]\w+")
    before = {word for each in turned.values() for word in words_of(each.before)}
    after = {word for each in turned.values() for word in words_of(each.after)}
    stay = {word for word in after if is_call.fullmatch(word)}
    assert stay == names(said(r"into HIP's except (.+?), which stay"))
    assert len({word for word in before - after if is_call.fullmatch(word)}) > 20


def test_of_other_names_few_are_turned(turned: dict[Path, Turned]) -> None:
    of_kernels = lost(turned[each] for each in KERNELS)
    assert of_kernels == names(said(r"as do all of the kernels but (.+?)\. It takes the `std::`"))
    of_hosts = lost(turned.values())
    assert of_hosts == of_kernels | names(said(r"and from the host's (.+?), in whose place"))


def test_includes_of_ours_are_not_turned(turned: dict[Path, Turned]) -> None:
    assert '`#include "cuda/..."`, which hipify does not turn' in section()
    ours = re.compile(r'^#include ".+"$', re.M)
    for source, each in turned.items():
        assert ours.findall(each.after) == ours.findall(each.before), source
    theirs = [each.after for each in turned.values()]
    assert not any("#include <cuda" in text for text in theirs)


def test_what_a_port_does_by_hand(turned: dict[Path, Turned]) -> None:
    pieces = said(r"by hand: (\w+) pieces of PTX in `primitives.cuh`")
    primitives = CSRC / "cuda" / "primitives.cuh"
    asm = re.compile(r'\basm(?: volatile)?\("[^"]')  # without those that only say "unknown"
    assert PIECES[len(asm.findall(turned[primitives].after))] == pieces
    assert not any(asm.search(each.after) for file, each in turned.items() if file != primitives)
    assert "`kWarp` is 32" in section()
    assert re.search(r"\bkWarp = 32;", "".join(each.after for each in turned.values()))
    kernels = turned[primitives].after
    assert "__launch_bounds__(threads, blocks)" in kernels
    for name in names(said(r"Whether a HIP compiler takes (.+?) was not tried")):
        assert name in kernels
