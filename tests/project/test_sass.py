"""bench.cuda.sass: the loop that reads a tensor, found in a listing, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda.sass import predicted
from bench.cuda.sass.__main__ import Row, above, doubtful, table
from bench.cuda.sass.flow import costs, in_flight
from bench.cuda.sass.listing import Instruction, Kernel

NAME = (
    "void hookstats::cuda::runs<hookstats::cuda::Vectors<float>, false, false, 1>"
    "(hookstats::cuda::Table<1>)"
)


def listing(*lines: str) -> list[Instruction]:
    """Instructions 16 bytes apart; `{n}` in a line is the address of the n-th."""
    addresses = [hex(16 * i) for i in range(len(lines))]
    return [Instruction(16 * i, line.format(*addresses)) for i, line in enumerate(lines)]


def kernel(*lines: str, name: str = NAME) -> Kernel:
    return Kernel(name, "sm_90", listing(*lines), 80, 0)


LOADS = ["LDG.E.128 R4, desc[UR4][R2.64]"] * in_flight()
SUMS = [
    *["FADD R8, R4, R5"] * 4,
    "FFMA R8, R4, R4, R8",
    "FMNMX R9, R9, R4, PT",
    "FMNMX R10, R10, R4, !PT",
]
SUMS *= 4 * in_flight()
HEAD, LOOP = ["MOV R1, R2"], len(LOADS) + len(SUMS)


def test_a_loop_costs_what_is_between_its_ends() -> None:
    lines = [*HEAD, *LOADS, *SUMS, "@P0 BRA {1}", "EXIT"]
    (cost,) = costs(kernel(*lines)).values()
    assert cost.instructions == (LOOP + 1) / (4 * in_flight())
    assert cost.by_pipe["fma"] == 5.0
    assert cost.by_pipe["alu"] == 2.0


def test_a_minimum_that_lost_its_sign_is_found() -> None:
    lines = [
        "VIADDMNMX R4, R4, 0xffffffff, R8, PT",
        "@P0 VIADDMNMX R9, R0.reuse, 0xffffffff, R2, PT",
        "VIADDMNMX R4, R4, -R5, R8, PT",
        "VIADDMNMX R17, R17, 0x1, R0, PT",
        "VIADDMNMX R4, R4.reuse, -R5.reuse, 0xb9600000, !PT",
        "VIADDMNMX.RELU R4, R4, -R5, 0x10, PT",
    ]
    found = list(doubtful([kernel(*lines)]))
    assert [line.partition(": ")[0].split()[-1] for line in found] == ["0x0", "0x10"]


def test_what_a_loop_has_in_local_memory_is_counted() -> None:
    lines = ["STL [R1], R2", *LOADS, *SUMS, "LDL R2, [R1]", "STL.64 [R1], R2", "@P0 BRA {1}"]
    (cost,) = costs(kernel(*lines, "LDL R2, [R1]", "EXIT")).values()
    assert cost.local == 2 / (4 * in_flight())


@pytest.mark.parametrize("least", [["HMNMX2 R9, R9, R4, PT"] * 2, ["VHMNMX R9, R9, R4, R5, PT"]])
def test_two_elements_of_a_word_are_compared_at_once(least: list[str]) -> None:
    sums = [*["FFMA R8, R4, R4, R8"] * 8, *least] * 4 * in_flight()
    lines = [*HEAD, *LOADS, *sums, "@P0 BRA {1}", "EXIT"]
    (cost,) = costs(kernel(*lines, name=NAME.replace("float", "hookstats::BFloat16"))).values()
    assert cost.instructions == (len(LOADS) + len(sums) + 1) / (8 * in_flight())


def test_the_way_that_does_all_is_taken_and_no_shorter_one() -> None:
    """A branch jumps over the sums, as where a warp has nothing to sum."""
    over = 2 + LOOP
    lines = [*HEAD, *LOADS, f"@P1 BRA {{{over}}}", *SUMS, "@P0 BRA {1}", "EXIT"]
    (cost,) = costs(kernel(*lines)).values()
    assert cost.instructions == (LOOP + 2) / (4 * in_flight())


def test_a_way_that_leaves_a_sum_out_is_none() -> None:
    lines = [*HEAD, *LOADS, *SUMS, "@P0 BRA {1}", "EXIT"]
    assert costs(kernel(*(line.replace("FFMA", "MOV") for line in lines))) == {}


def test_of_two_ways_the_shorter_one_counts_and_none_with_a_call() -> None:
    slow, fast = ["NOP"] * 50, ["CALL.REL 0x0"]
    begin = 1 + LOOP
    lines = [*HEAD, *LOADS, *SUMS, f"@P1 BRA {{{begin + 2 + len(slow)}}}", *slow]
    lines += [f"BRA {{{begin + 2 + len(slow) + len(fast)}}}", *fast, "@P0 BRA {1}", "EXIT"]
    (cost,) = costs(kernel(*lines)).values()
    assert cost.by_pipe["control"] * 4 * in_flight() == len(slow) + 3


def test_a_loop_is_not_repeated_to_count_in_it_again() -> None:
    """Of values that are not finite, one vector after another is counted in a loop, which is short;
    of others in both histograms one after the other."""
    count, elements = ["ATOMS.POPC.INC.32 RZ, [R0+URZ]"] * 4 * in_flight(), 4 * in_flight()
    between = ["NOP"] * 9
    loop = 1 + LOOP + 1 + len([*count, *between, *count]) + 1
    lines = [*HEAD, *LOADS, *SUMS, f"@P1 BRA {{{loop}}}", *count, *between, *count]
    lines += [f"BRA {{{loop + elements + 1}}}", *count, f"@P2 BRA {{{loop}}}"]
    lines += ["@P0 BRA {1}", "EXIT"]
    cost = costs(kernel(*lines, name=NAME.replace("false", "true", 1)))["and both"]
    assert cost.by_pipe["control"] * elements == len(between) + 3


def test_a_call_by_a_predicate_is_passed_by() -> None:
    lines = [*HEAD, *LOADS, *SUMS, "@P5 CALL.REL.NOINC 0x0", "@P0 BRA {1}", "EXIT"]
    (cost,) = costs(kernel(*lines)).values()
    assert cost.instructions == (LOOP + 2) / (4 * in_flight())


def test_architectures_stand_side_by_side() -> None:
    rows = [Row("runs fp32", f"sm_{n}", "moments", n / 8, 5.0, 80, n, 0.25) for n in (100, 80, 90)]
    head, _, line = table(rows).splitlines()
    assert head.startswith("| kernel | what | sm_80 | sm_90 | sm_100 | registers |")
    cells = "10.0 (5.0) | 11.2 (5.0) | 12.5 (5.0) | 80 | 80 / 90 / 100 | 0.25 | 0.69"
    assert line == f"| runs fp32 | moments | {cells} |".replace("0.69", f"{rows[2].share:.2f}")
    assert "| - | " in table([*rows, rows[0]._replace(what="and both")])


def test_loops_that_merge_are_not_taken_for_those_that_read() -> None:
    merge = ["LDG.E.128 R4, desc[UR4][R2.64]"] * 9 + ["MUFU.RCP64H R5, R5"]
    lines = [*HEAD, *merge, "@P0 BRA {1}", "EXIT"]
    assert costs(kernel(*lines)) == {}


def test_what_is_above_a_ceiling_is_named() -> None:
    row = Row("runs fp32", "sm_90", "moments", 13.0, 5.0, 80, 72, 0.5)
    assert list(above([row], {row.key: [13.0, 80, 72, 0.5]})) == []
    assert list(above([row], {row.key: [12.0, 80, 64, 0]})) == [
        "sm_90 runs fp32 moments: 13 instructions an element; expected at most 12",
        "sm_90 runs fp32 moments: 72 bytes of local memory; expected at most 64",
        "sm_90 runs fp32 moments: 0.5 loads and stores of local memory an element; "
        "expected at most 0",
    ]
    assert "no ceiling is stored" in next(above([row], {}))


def test_shares_are_of_the_bandwidth_that_instructions_leave() -> None:
    row = Row("runs bf16", "sm_90", "moments", 20.0, 5.0, 80, 72, 0.0)
    assert row.share == pytest.approx(128 / 20 * 2 / 18.6)
    assert row._replace(alu=16.0).share == pytest.approx(64 / 16 * 2 / 18.6)
    assert row._replace(instructions=2.0, alu=1.0).share == 1.0


SHARES = {
    (f"{kernel} {dtype}", what): 0.8
    for _, kernel in predicted.REGIMES.values()
    for dtype in ("fp32", "bf16")
    for what in predicted.COUNTED.values()
}


def test_each_rate_that_is_to_be_reached_is_predicted_for_every_regime() -> None:
    short = {figure.claim for figure in predicted.predicted(SHARES) if not figure.reached}
    rates = {
        f"{regime}: {rate}"
        for regime in predicted.REGIMES
        for rate in ("moments, fp32", "moments, bf16", "+ log bins per tensor, fp32")
    }
    added = {
        f"transformer, every{which}, at 100% of the matrix units' peak"
        for which in (" step", "=10")
    }
    assert short == rates | added
    maps = SHARES | {("short rows bf16", "and both"): 0.444}
    others = {figure.claim for figure in predicted.predicted(maps) if not figure.reached} - short
    assert others == {"maps of 7x7, 14x14 and 16x16: + 64 bins per channel, bf16"}
    assert predicted.table(maps).count("**short**") == len(short) + 1


def test_a_step_takes_longer_by_what_is_read_of_what_it_computes() -> None:
    """2.4 GB are read in 0.56 ms, beside 21 trillion operations in 21.7 ms at best."""
    assert predicted.step_of_block(1.0, 1.0) == pytest.approx(100 * 0.5618 / 21.68, rel=1e-3)
    assert predicted.step_of_block(0.5, 0.5) == pytest.approx(predicted.step_of_block(1.0, 1.0))


def test_what_kind_of_rows_a_kernel_reads_is_told_by_its_name() -> None:
    skewed = NAME.replace("Vectors<float>", "Skewed<hookstats::cuda::Vectors<float> >")
    for name, is_skewed in ((NAME, False), (skewed, True)):
        found = kernel(name=name)
        assert (found.is_skewed, found.is_masked, found.dtype) == (is_skewed, False, "fp32")
        assert found.flags == ["false", "false", "1"]
    assert kernel(name=NAME.replace("runs<", "maps<")).agent == "short rows"


def test_files_without_kernels_are_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.cuda.sass", "no-such-file.o"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no-such-file.o" in done.stderr
