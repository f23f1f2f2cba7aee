"""bench.cuda.tune: its header, as the build includes it; its programs, how they are built, and what
they answer in the emulator of tests/simt.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda import check
from bench.cuda.tune.__main__ import main, provenance
from bench.cuda.tune.bounds import bounds
from bench.cuda.tune.cases import HISTOGRAMS, LAYOUTS, Case
from bench.cuda.tune.ledger import Ledger, Machine, Measured
from bench.cuda.tune.policy import AXES, TUNED, Code, Plan, Policy, header, read
from bench.cuda.tune.programs import CrashedError, Programs
from bench.cuda.tune.search import OUT_OF_TIME, Compared, Found, Search
from bench.cuda.tune.variants import MOST, Builder, Usage, Variant, nvcc, usage, worth_measuring

pytestmark = pytest.mark.check

TUNE = ROOT / "bench" / "cuda" / "tune"
DEFAULT = read()
OTHER = Policy(Code(128, 2, 6, 4), Plan(*range(3, 3 + len(Plan._fields))))
TINY = 1 / 32
"""Megabytes."""
MACHINE = Machine("a GPU", "9.0", "1.2", "abc")
FOUND = nvcc.find_nvcc()


def compiled(*options: str | Path) -> None:
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_header_holds_the_numbers_and_where_they_are_from(tmp_path: Path) -> None:
    by_hand = (
        "Derived for an H200; kChannelPieces, of 3, 6, 12 and 24, kColumnPieces, of 2, 4, 6, 8 and "
        "12, and kLeastColumns, of 16 and 32, are the best that were measured on one "
        "(bench/results/h200-by-hand.txt). kWarpTiles and kFillingWarps are what many gradients "
        "are thought to need. The tuner has not run."
    )
    assert header(DEFAULT, [by_hand]) == TUNED.read_text()
    path = tmp_path / "tuned.h"
    path.write_text(header(OTHER, ["Measured on a GPU, " + "word " * 40]))
    assert read(path) == OTHER
    assert "// Measured on a GPU, word" in path.read_text()
    assert max(map(len, path.read_text().splitlines())) <= 100
    path.write_text(path.read_text().replace("kPieces", "kPiece"))
    with pytest.raises(ValueError, match="has no kPieces"):
        read(path)


def test_plans_have_the_numbers_of_the_header(tmp_path: Path) -> None:
    """Of the build's own, and of one that is put in its place."""
    theirs = tmp_path / "tuned.h"
    theirs.write_text(header(OTHER, ["For a test."]))
    for policy, options in ((DEFAULT, []), (OTHER, [f'-DHOOKSTATS_TUNED="{theirs}"'])):
        code, plan = policy
        holds = [f"kBlock == {code.block}", f"kInFlight == {code.in_flight}"]
        holds += [f"kRunsBlocks == {code.runs_blocks}", f"kColumnsBlocks == {code.columns_blocks}"]
        holds += [f"Device{{}}.policy.{name} == {n}" for name, n in plan._asdict().items()]
        source = tmp_path / "holds.cpp"
        checks = "".join(f"static_assert({each});\n" for each in holds)
        source.write_text(f'#include "cuda/plan.h"\nusing namespace hookstats::cuda;\n{checks}')
        compiled("-fsyntax-only", *options, source)


def test_provenance_says_what_was_found() -> None:
    case = Case("bf16", "(N, L, 64)", "both", 32)
    better = Found(OTHER, Compared({case: 0.9}), [])
    (said,) = provenance(better, MACHINE, "c0ffee", 1234)
    assert said.startswith("Measured on a GPU, driver 1.2, ")
    assert "commit c0ffee, 1234 points: 0.900 of the time" in said
    assert "at most 0.900 ((N, L, 64) bf16, both, 32 MB)" in said
    for compared, why in (
        (Compared({}), "nothing was faster"),
        (Compared({}, "no luck"), "no luck"),
    ):
        (said,) = provenance(Found(DEFAULT, compared, []), MACHINE, "c0ffee", 1234)
        assert said.endswith(f"the numbers before it stay, as {why}.")


SAID = """\
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    104 bytes stack frame, 92 bytes spill stores, 100 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 104 bytes cumulative stack size
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers
"""


def test_variants_that_spill_most_are_not_measured() -> None:
    assert usage(SAID) == Usage(128, 200)
    codes = [Code(256, i, 3, 2) for i in range(MOST + 3)]
    spilled = [100 - i for i in range(len(codes))]
    made = [Variant(code, Path(), Usage(80, n)) for code, n in zip(codes, spilled, strict=True)]
    kept = [variant.code for variant in worth_measuring(made, codes[0])]
    assert kept == [codes[0], *codes[-(MOST - 1) :]]  # the default spills most, and stays


NVCC = """\
#!/bin/sh
case "$*" in *--version*) echo "release 13.0"; exit;; *--dryrun*) exit;; esac
echo "$@" >>"$0.log"
while [ "$1" != -o ]; do shift; done
{fails}cp /bin/true "$2"
echo "ptxas info    : Used 99 registers"
"""


def test_programs_are_built_once_and_anew_for_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, log = tmp_path / "bin" / "nvcc", tmp_path / "bin" / "nvcc.log"
    for file in (command, tmp_path / "include" / "cuda_runtime_api.h"):
        file.parent.mkdir(parents=True)
        file.touch()
    command.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    codes = [DEFAULT.code, OTHER.code]

    def builder() -> Builder:
        return Builder(tmp_path / "built", "9.0", 1)

    command.write_text(NVCC.format(fails="exit 1\n"))
    with pytest.raises(RuntimeError, match=r"nvcc failed on micro\.cu"):
        builder().build(codes)
    command.write_text(NVCC.format(fails=""))
    log.unlink()
    for _ in range(2):
        builder().build(codes)
        assert len(log.read_text().splitlines()) == 3
    assert "code=sm_90" in log.read_text()
    variants = builder().variants([*codes, Code(512, 8, 1, 1)])
    assert [variant.code for variant in variants] == codes
    assert variants[1].usage == Usage(99, 0)
    assert read(variants[1].program.with_name("tuned.h")).code == OTHER.code
    monkeypatch.setattr("bench.cuda.tune.variants.sources", lambda: "others")
    assert builder().missing(codes) == ["micro", *map(str, codes)]


def test_without_nvcc_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="no nvcc"):
        Builder(tmp_path, "9.0", 1).build([DEFAULT.code])


def emulated_program(folder: Path, code: Code, name: str = "tune") -> Path:
    """The program of a variant, with the kernels' own sources."""
    simt, theirs = ROOT / "tests" / "simt", folder / "tuned.h"
    theirs.write_text(header(Policy(code, DEFAULT.plan), ["For a test."]))
    options = [f'-DHOOKSTATS_TUNED="{theirs}"', "-DHOOKSTATS_SIMT", f"-I{simt}", f"-I{TUNE}"]
    sources = ["-O1", "-xc++", TUNE / f"{name}.cu", simt / "simt.cpp"]
    compiled(*options, *sources, "-o", folder / name)
    return folder / name


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated_program(tmp_path_factory.mktemp("tune"), DEFAULT.code)


small = partial(Programs, nbytes=1 << 17, launches=2, replays=1)


@pytest.fixture
def programs(emulated: Path, tmp_path: Path) -> Iterator[Programs]:
    variant = Variant(DEFAULT.code, emulated, Usage(0, 0))
    log = tmp_path / "log"
    found = small([variant], log)
    yield found
    found.close()


def tiny(layout: str, dtype: str = "bf16", histograms: str = "both") -> Case:
    return Case(dtype, layout, histograms, TINY)


def test_the_program_has_the_numbers_of_the_header(programs: Programs) -> None:
    hello = programs.hello(DEFAULT.code)
    numbers = DEFAULT.code._asdict() | DEFAULT.plan._asdict()
    assert {name: hello[name] for name in numbers} == numbers
    assert (hello["device"], hello["capability"]) == ("emulated", "9.0")


def test_results_are_right_whatever_the_numbers_are(programs: Programs) -> None:
    layouts = ["whole tensor", "(N, L, 64)", "(N, L, 1024)", "(N, 512, 7, 7)", "rows of 1024"]
    assert set(layouts) <= set(LAYOUTS)
    for i, (name, values) in enumerate(AXES.items()):
        for j, value in enumerate((values[0], values[-1])):
            case = tiny(layouts[(i + j) % 5], ("bf16", "fp32")[j])
            plan = DEFAULT.plan._replace(**{name: value})
            found = programs.time(DEFAULT.code.of(case.agent), case, plan)
            assert (found.status, found.text) == ("ok", ""), (name, value, case)
    for histograms in HISTOGRAMS:
        case = tiny("(N, L, 64)", "fp32", histograms)
        assert programs.time(DEFAULT.code.of("columns"), case, DEFAULT.plan).status == "ok"


def test_results_are_right_whatever_is_compiled(tmp_path: Path) -> None:
    code = Code(512, 8, 1, 2)
    programs = small(
        [Variant(code, emulated_program(tmp_path, code), Usage(0, 0))], tmp_path / "log"
    )
    assert programs.hello(code)["block"] == code.block
    for layout in ("(N, L, 64)", "(N, 512, 7, 7)"):
        case = tiny(layout)
        found = programs.time(code.of(case.agent), case, DEFAULT.plan)
        assert (found.status, found.text) == ("ok", ""), case
    programs.close()


def test_the_search_runs_on_the_program(programs: Programs, tmp_path: Path) -> None:
    cases = [tiny("(N, L, 64)"), tiny("rows of 1024", histograms="none")]
    end = time.monotonic() + 60
    ledger = Ledger(tmp_path / "tune.csv", MACHINE)
    search = Search(
        programs, ledger, DEFAULT, cases, programs.codes, lambda: end - time.monotonic()
    )
    found = search.run()  # whatever it finds: the emulator has no sense of time
    assert found.policy.code == DEFAULT.code
    assert found.notes == []
    plans = {row.split(",")[-8] for row in ledger.path.read_text().splitlines()[1:]}
    assert len(plans) > 4  # of numbers that made a difference


def test_from_the_command_line_to_a_header(
    emulated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    micro = tmp_path / "micro"
    micro.write_text("#!/bin/sh\nexit 1\n")
    micro.chmod(0o755)
    variants = [Variant(DEFAULT.code, emulated, Usage(0, 0))]
    monkeypatch.setattr(Builder, "build", lambda self, codes: None)
    monkeypatch.setattr(Builder, "variants", lambda self, codes: variants)
    monkeypatch.setattr(Builder, "program", lambda self, name: micro)
    monkeypatch.setattr("bench.cuda.tune.search.AXES", {"column_pieces": (1, 2)})
    monkeypatch.setattr("bench.cuda.tune.__main__.Programs", small)
    monkeypatch.setattr("bench.cuda.tune.__main__.cases", lambda: [tiny("(N, L, 64)", "fp32")])
    options = ["--capability", "9.0", "--out", str(tmp_path)]
    assert main([*options, "--seconds", "0"]) == OUT_OF_TIME
    said = capsys.readouterr().out
    assert "was not measured" in said
    assert said.endswith("0 new points, 0 in all: another call goes on\n")
    assert main([*options, "--seconds", "60"]) == 0
    assert read(tmp_path / "tuned.h").code == DEFAULT.code
    assert "Measured on emulated, driver " in (tmp_path / "tuned.h").read_text()
    with pytest.raises(SystemExit, match=r"expected 9\.0, which emulated has"):
        main(["--capability", "8.0", "--out", str(tmp_path)])
    points = (tmp_path / "tune.csv").read_text()
    assert main([*options, "--seconds", "0"]) == 0  # all is known
    assert (tmp_path / "tune.csv").read_text() == points


def test_a_program_that_ends_is_a_crash_and_starts_again(programs: Programs) -> None:
    case = tiny("(N, L, 64)")
    asked = DEFAULT.code.of("columns"), case, DEFAULT.plan
    assert programs.time(*asked).status == "ok"
    assert programs._running is not None
    programs._running.kill()
    programs._running.wait()
    assert programs.time(*asked).status == "crashed"
    assert programs.time(*asked).status == "ok"
    too_large = case._replace(megabytes=1)
    with pytest.raises(ValueError, match="expected at most"):
        programs.time(DEFAULT.code.of("columns"), too_large, DEFAULT.plan)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo no memory >&2; exit 1", "ended with 1: no memory"),
        ("exec sleep 60", "ended with -9"),
        ("printf '{\"median\": 1'; exit 0", "ended with 0"),
    ],
)
def test_what_does_not_answer_is_a_crash(tmp_path: Path, script: str, status: str) -> None:
    program = tmp_path / "256-4-3-2" / "tune"
    program.parent.mkdir()
    answers = f"case $line in hello) echo '{{}}';; *) {script};; esac"
    program.write_text(f"#!/bin/sh\nwhile read line; do {answers}; done\n")
    program.chmod(0o755)
    variant = Variant(DEFAULT.code, program, Usage(0, 0))
    programs = Programs([variant], tmp_path / "log", seconds=1.0)
    case = tiny("(N, L, 64)")
    found = programs.time(DEFAULT.code.of("columns"), case, DEFAULT.plan)
    assert found.status == "crashed"
    assert status in found.text
    with pytest.raises(CrashedError):
        programs.plan(DEFAULT.code.of("columns"), case, DEFAULT.plan)
    # A device that is gone is no fault of a point.
    program.write_text("#!/bin/sh\necho no device >&2; exit 1\n")
    with pytest.raises(CrashedError, match="no device"):
        programs.time(DEFAULT.code.of("columns"), case, DEFAULT.plan)
    programs.close()


def test_what_bounds_the_kernels_is_measured_once(tmp_path: Path) -> None:
    program, path = tmp_path / "micro", tmp_path / "tune-micro.csv"
    program.write_text("#!/bin/sh\necho no device >&2; exit 1\n")
    program.chmod(0o755)
    (said,) = bounds(program, path, MACHINE, 60)
    assert said.endswith("was not measured: no device")
    answer = '{"what": "read", "value": 4.25, "unit": "TB/s", "megahertz": 1755}'
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    machine = MACHINE._replace(device="a GPU, with a comma")
    for expected in (["read: 4.25 TB/s"], []):
        assert bounds(program, path, machine, 60) == expected
    assert path.read_text().endswith(",1.2,abc,read,4.25,TB/s,1755\n")
    assert bounds(program, path, MACHINE, 60) == ["read: 4.25 TB/s"]


def test_all_that_bounds_the_kernels_is_reported(tmp_path: Path) -> None:
    """In the emulator, on tiny memory: whatever the times are, and of 0 MHz."""
    program = tmp_path / "quick"
    micro = emulated_program(tmp_path, DEFAULT.code, "micro")
    program.write_text(f"#!/bin/sh\nexec {micro} 65536 1 1\n")
    program.chmod(0o755)
    said = bounds(program, tmp_path / "tune-micro.csv", MACHINE, 120)
    units = {what: value.split()[1] for what, value in (each.split(": ") for each in said)}
    assert len(units) == len(said)
    beginnings = {"read": 1, "copy": 1, "empty launch": 1, "launch behind": 1, "a dependent": 1}
    beginnings |= {"additions to": 9, "loads from": 9, "merge of": 4}
    for begins, count in beginnings.items():
        assert sum(what.startswith(begins) for what in units) == count, begins
    assert len(units) == sum(beginnings.values())
    assert units["launch behind a copy of 16 MB"] == "us"
    assert units["a dependent launch saves of it"] == "us"


@pytest.mark.skipif(FOUND is None, reason="no nvcc")
@pytest.mark.parametrize(("architecture", "waits"), [("sm_80", 0), ("sm_90", 1)])
def test_a_dependent_kernel_waits_where_it_can(
    tmp_path: Path, architecture: str, waits: int
) -> None:
    assert FOUND is not None
    options = ["-std=c++20", "-ptx", f"-arch={architecture}", f"-I{ROOT / 'csrc'}", f"-I{TUNE}"]
    command = [FOUND.command, *options, TUNE / "micro.cu", "-o", tmp_path / "ptx"]
    subprocess.run(command, check=True)
    assert (tmp_path / "ptx").read_text().count("griddepcontrol.wait;") == waits


def test_a_wrong_result_is_a_point(tmp_path: Path) -> None:
    program = tmp_path / "tune"
    program.write_text('#!/bin/sh\nread line; echo \'{"wrong": "tally 3 is 7"}\'; read line\n')
    program.chmod(0o755)
    programs = Programs([Variant(DEFAULT.code, program, Usage(0, 0))], tmp_path / "log")
    case = tiny("(N, L, 64)")
    found = programs.time(DEFAULT.code.of("columns"), case, DEFAULT.plan)
    assert found == Measured("wrong", text="tally 3 is 7")
    programs.close()


@pytest.mark.parametrize(
    ("code", "well"), [(0, True), (1, False), (OUT_OF_TIME, None), (None, None)]
)
def test_how_the_phase_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, well: bool | None
) -> None:
    asked: list[str] = []

    def run(
        self: check.Check, name: str, command: list[str], most: float
    ) -> tuple[int | None, str]:
        asked.extend(command)
        return code, "7 points"

    monkeypatch.setattr(check.Check, "run", run)
    for has_gpu in (True, False):
        asked.clear()
        (outcome,) = check.Check(tmp_path, 460, "9.0", has_gpu=has_gpu).tune().values()
        assert outcome.well is well
        assert ("--build" in asked) is not has_gpu
