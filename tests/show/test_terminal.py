"""summarise and render: one line per site, right, aligned, coloured and never cut."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console
from support.samples import changed, record_of, sample, tensors
from torch import Tensor

from hookstats.records.record import StepRecord
from hookstats.records.summary import SiteSummary, summarise
from hookstats.show.grid import elide
from hookstats.show.sorts import SORTS
from hookstats.show.terminal import render

YELLOW, RED = "\x1b[33m", "\x1b[1;31m"


def shown(record: StepRecord, width: int = 80, terminal: bool = False) -> list[str]:
    """The lines of the table."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        _environ={},
    )
    render(record, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def table_rows(record: StepRecord, sites: list[SiteSummary]) -> list[str]:
    console = Console(file=io.StringIO())
    render(record, console, sites)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()[3:]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", line)


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("seed", range(5))
def test_a_summary_is_that_of_the_whole_tensor(seed: int) -> None:
    summaries = summarise(sample(seed))
    assert [(s.name, s.kind) for s in summaries] == list(tensors())
    for summary, (x, dim) in zip(summaries, tensors(seed).values(), strict=True):
        values = x.double().flatten()
        finite = values[values.isfinite()]
        assert summary.shape == tuple(x.shape)
        assert summary.channels == (1 if dim is None else x.shape[dim])
        assert summary.observed == 1
        assert (summary.finite, summary.nonfinite) == (len(finite), len(values) - len(finite))
        if len(finite):
            scale = finite.abs().max().item()
            assert summary.mean == pytest.approx(finite.mean().item(), abs=1e-6 * scale)
            std = finite.std(correction=0).item()
            assert summary.std == pytest.approx(std, rel=1e-5, abs=1e-12)
            assert (summary.min, summary.max) == (finite.min().item(), finite.max().item())
        else:
            assert math.isnan(summary.mean)
            assert math.isnan(summary.std)
            assert (summary.min, summary.max) == (math.inf, -math.inf)


def test_equal_channels_have_no_spread() -> None:
    (summary,) = summarise(record_of({("a", "output"): (torch.full((3, 50), 0.1), 1)}))
    assert (summary.mean, summary.std) == (torch.tensor(0.1).item(), 0.0)


@pytest.mark.parametrize(
    ("channel", "dead"),
    [
        ([0.0, -0.0, 0.0], 1),
        ([0.0, math.nan, math.inf], 1),  # every finite value is zero
        ([math.nan, math.inf, math.nan], 0),  # nothing is known of it
        ([0.0, 1e-45, 0.0], 0),
        ([2.0, 2.0, 2.0], 0),  # constant, which is something else
    ],
)
def test_a_channel_is_dead_when_all_its_finite_values_are_zero(channel, dead: int) -> None:
    x = torch.stack([torch.tensor(channel), torch.ones(3), torch.tensor(channel)], 1)
    (summary,) = summarise(record_of({("a", "output"): (x, 1)}))
    assert summary.dead == 2 * dead


def test_infinite_moments_make_no_noise() -> None:
    record = sample()
    moments = np.full_like(record.moments, np.inf)
    for summary in summarise(changed(record, moments=moments)):
        assert not math.isfinite(summary.mean)


def test_a_table_row_says_what_the_summary_says() -> None:
    x = torch.tensor([[-1.0, 0.0, math.nan], [3.0, 0.0, 12345.678]])
    lines = shown(record_of({("conv", "grad_output"): (x, 1)}, step=7, rank=2))
    assert lines[0].strip() == "step 7, rank 2"
    assert words(lines[1]) == "non-"
    assert words(lines[2]) == "layer kind shape mean std min max finite dead"
    assert words(lines[3]) == "conv grad_output 2x3 2470 4938 -1.00 12346 1 1/3"


def test_sites_without_a_name_a_shape_or_values_are_said_to_be_so() -> None:
    rows = [words(line) for line in shown(sample())[3:]]
    assert rows[0].startswith("(root) output ")
    assert rows[2].endswith(" - - - - 6 0/2")
    assert rows[4] == "no.channels input 2x0 - - - - 0 -"
    assert rows[6] == "scalar output scalar 0.250 0 0.250 0.250 0 0/1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.00"),
        (-0.0123, "-0.0123"),
        (0.00123, "1.23e-3"),
        (0.00999, "9.99e-3"),
        (0.009999, "0.0100"),
        (123.4, "123"),
        (999.6, "1000"),
        (-12345.4, "-12345"),
        (99999.9, "1.00e5"),
        (-1.23456e-7, "-1.23e-7"),
        (3.4e38, "3.40e38"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    x = torch.tensor([value], dtype=torch.float64)
    (line,) = shown(record_of({("a", "output"): (x, None)}))[3:]
    assert line.split()[3:] == [text, "0", text, text, "0", f"{int(value == 0)}/1"]


@pytest.mark.parametrize("sort", [name for name in SORTS if name not in ("name", "min")])
def test_the_greatest_come_first_and_what_has_no_value_last(sort: str) -> None:
    sites = summarise(sample())
    value = {
        "mean": lambda site: abs(site.mean),
        "dead": lambda site: site.dead / max(site.channels, 1),
    }.get(sort, lambda site: getattr(site, sort))
    values = [value(site) for site in sorted(sites, key=SORTS[sort])]
    known = [value for value in values if not math.isnan(value)]
    assert known == sorted(known, reverse=True)
    assert all(map(math.isnan, values[len(known) :]))


def test_names_and_minima_ascend() -> None:
    sites = summarise(sample())
    assert [s.name for s in sorted(sites, key=SORTS["name"])] == sorted(s.name for s in sites)
    assert [s.min for s in sorted(sites, key=SORTS["min"])] == sorted(s.min for s in sites)


LONG = "encoder.layers.11.self_attention.a_very_long_name_indeed.out_proj[3]"


def crowded() -> StepRecord:
    x = -1.234e-5 * torch.rand(16, 3, 32, 32)
    return record_of({(LONG, "grad_output[1].logits"): (x, 1), (":smile:", "output"): (x, 1)})


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_terminal_has_one_line_for_each_site(width: int) -> None:
    lines = [plain(line) for line in shown(crowded(), width, terminal=True)]
    assert max(map(len, lines)) <= width
    assert "shape" not in lines[2]
    first, second = (line.split() for line in lines[3:])
    assert second[:2] == [":smile:", "output"]
    for short, name in zip(first, (LONG, "grad_output[1].logits"), strict=False):
        head, mark, tail = short.partition("…")
        assert mark or short == name
        assert name.startswith(head)
        assert name.endswith(tail)
    assert "…" in first[0]


def test_a_console_of_another_encoding_has_dots() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    render(crowded(), Console(file=file, width=80, force_terminal=True, color_system=None))
    file.seek(0)
    assert ".." in file.read().splitlines()[3].split()[0]


def test_elided_names_stay_distinct() -> None:
    names = [f"transformer.h.{i}.attention.c_proj" for i in range(48)]
    short = elide(names, 22)
    assert len(set(short)) == len(names)
    assert {len(name) for name in short} == {22}
    assert elide(["a.b", "encoder.layers.0.weight"], 10) == ["a.b", "enc…weight"]
    assert elide([], 10) == []
    assert elide(["abcdef"], 4, "..") == ["..ef"]


def test_a_wide_terminal_has_the_shapes_too() -> None:
    assert "shape" in shown(sample(), width=120, terminal=True)[2]
    assert "shape" in shown(crowded(), width=160, terminal=True)[2]


def test_the_chosen_sites_are_printed_in_their_order() -> None:
    sites = summarise(sample())
    rows = table_rows(sample(), [sites[5], sites[0]])
    assert [row.split()[0] for row in rows] == ["whole", "(root)"]
    assert table_rows(sample(), []) == []


def test_in_a_pipe_every_site_has_one_plain_line() -> None:
    lines = shown(crowded(), width=80)
    assert len(lines) == 5
    assert lines[3].split()[:3] == [LONG, "grad_output[1].logits", "16x3x32x32"]
    assert len({len(line) for line in lines[2:]}) == 1
    assert "\x1b" not in "".join(lines)


def line_of(x: Tensor) -> str:
    return shown(record_of({("a", "output"): (x, 1)}), terminal=True)[-1]


def test_trouble_is_coloured() -> None:
    healthy = torch.ones(2, 8)
    assert YELLOW not in line_of(healthy)
    assert RED not in line_of(healthy)
    one_dead = healthy.clone()
    one_dead[:, 0] = 0
    assert YELLOW not in line_of(one_dead)
    two_dead = one_dead.clone()
    two_dead[:, 1] = 0
    assert f"{YELLOW}2/8" in line_of(two_dead)
    infinite = healthy.clone()
    infinite[0, 3] = math.inf
    assert f"{RED}1" in line_of(infinite)


def test_the_parameters_that_changed_most_are_named() -> None:
    sizes = {"a": 1e-3, "b": 4e-2, "c": 2e-2, "d": 3e-2, "e": 1e-4}
    one = torch.ones(4, 2)
    sites = {(name, "param"): (2 * one, 0) for name in (*sizes, "zero")}
    sites |= {(name, "update"): (size * 2 * one, 0) for name, size in sizes.items()}
    sites |= {("zero", "param"): (0 * one, 0), ("zero", "update"): (one, 0)}
    said = "update to weight: median 0.0200, the largest b 0.0400, d 0.0300, c 0.0200"
    assert shown(record_of(sites, 0), 200)[-1] == said
    assert not any("update to weight" in line for line in shown(sample(0)))


def test_a_record_without_sites_has_a_header() -> None:
    assert shown(record_of({}, step=4))[0].strip() == "step 4"


def test_printing_goes_to_stdout(capsys) -> None:
    render(sample())
    assert "encoder.0.réseau output[1]" in capsys.readouterr().out


def test_without_rich_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"pip install 'hookstats\[cli\]'"):
        render(sample())


def test_optional_dependencies_are_imported_when_used() -> None:
    code = """
import sys
import hookstats.runs.run, hookstats.runs.writer, hookstats.show.terminal
assert not {"rich", "pyarrow", "pandas"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
