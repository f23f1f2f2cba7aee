"""summarise and render: one line a site, right, aligned, coloured and never cut."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from samples import record_of, sample, tensors
from torch import Tensor

from hookstats.records import StepRecord
from hookstats.summary import summarise
from hookstats.table import render

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
    for summary in summarise(replace(record, moments=moments)):
        assert not math.isfinite(summary.mean)


def test_a_table_row_says_what_the_summary_says() -> None:
    x = torch.tensor([[-1.0, 0.0, math.nan], [3.0, 0.0, 12345.678]])
    lines = shown(record_of({("conv", "grad_output"): (x, 1)}, step=7, rank=2))
    assert lines[0].strip() == "step 7, rank 2"
    assert words(lines[1]) == "non- dead"
    assert words(lines[2]) == "layer kind shape mean std min max finite channels"
    assert words(lines[3]) == "conv grad_output 2x3 2470 4938 -1.000 1.235e4 1 1/3"


def test_sites_without_a_name_a_shape_or_values_are_said_to_be_so() -> None:
    rows = [words(line) for line in shown(sample())[3:]]
    assert rows[0].startswith("(root) output ")
    assert rows[2].endswith(" - - - - 6 0/2")
    assert rows[4] == "no.channels input 2x0 - - - - 0 0/0"
    assert rows[6] == "scalar output scalar 0.2500 0 0.2500 0.2500 0 0/1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.000"),
        (-0.0123, "-0.01230"),
        (1234.5, "1234"),
        (9999.9, "1.000e4"),
        (-1.23456e-7, "-1.235e-7"),
        (3.4e38, "3.400e38"),
    ],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    x = torch.tensor([value], dtype=torch.float64)
    (line,) = shown(record_of({("a", "output"): (x, None)}))[3:]
    assert line.split()[3:] == [text, "0", text, text, "0", f"{int(value == 0)}/1"]


LONG = "encoder.layers.11.self_attention.a_very_long_name_indeed.out_proj[3]"


def crowded() -> StepRecord:
    x = -1.234e-5 * torch.rand(16, 3, 32, 32)
    return record_of({(LONG, "grad_output[1].logits"): (x, 1), (":smile:", "output"): (x, 1)})


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_terminal_is_not_overrun_and_nothing_is_cut(width: int) -> None:
    lines = [plain(line) for line in shown(crowded(), width, terminal=True)]
    assert max(map(len, lines)) <= width
    layer_end = lines[2].index("kind")
    kind_end = lines[2].index("shape")
    assert "".join(line[:layer_end].strip() for line in lines[3:]) == LONG + ":smile:"
    kinds = "".join(line[layer_end:kind_end].strip() for line in lines[3:])
    assert kinds == "grad_output[1].logitsoutput"
    assert "…" not in "".join(lines)


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
    assert f"{YELLOW}     2/8" in line_of(two_dead)
    infinite = healthy.clone()
    infinite[0, 3] = math.inf
    assert f"{RED}     1" in line_of(infinite)


def test_a_record_without_sites_has_a_header() -> None:
    assert shown(record_of({}, step=4))[0].strip() == "step 4"


def test_printing_goes_to_stdout(capsys) -> None:
    render(sample())
    assert "encoder.0.réseau output[1]" in capsys.readouterr().out


def test_without_rich_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"pip install 'hookstats\[demo\]'"):
        render(sample())


def test_optional_dependencies_are_imported_when_used() -> None:
    code = """
import sys
import hookstats.run, hookstats.store, hookstats.table
assert not {"rich", "pyarrow", "pandas"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
