"""What pages quote of the measured tables, and of the rules, is what these say."""

from __future__ import annotations

import re

import pytest
from support.paths import ROOT

from hookstats.rules import advice_of, default_rules

TABLES = (ROOT / "docs" / "performance-tables.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
MODELS = ("200-layer MLP, 32x128", "GPT-2 6x384, 8x128 tokens", "ResNet-50, 4x3x128x128")
TOOLS = {
    "no hooks": "no hooks",
    "hookstats": "watch",
    "hookstats, every=10": "watch every=10",
    "fastai-style": "fastai-style*",
    "Composer-style": "Composer-style*",
    "transformers' DebugUnderflowOverflow": "DebugUnderflowOverflow*",
    "wandb.watch, log_freq=1, offline": "wandb.watch*",
    "TensorBoard add_histogram": "TensorBoard*",
    "the same statistics in eager hooks": "eager hooks",
    "torchinstruments": "torchinstruments*",
}
"""The names of tools on the page of comparison, and in the tables."""


def measured(model: str) -> dict[str, tuple[float, float]]:
    """By tool: milliseconds of a step, and how many times those without hooks."""
    (table,) = re.findall(rf"^{re.escape(model)}, ms/step.*\n(?:\S.*\n)+", TABLES, re.MULTILINE)
    head, *rows = (re.split(r" {2,}", line) for line in table.splitlines())
    ms, ratio = head.index("all"), head.index("/no hooks")
    return {
        cells[0]: (float(cells[ms].rstrip("~")), float(cells[ratio]))
        for cells in rows
        if len(cells) == len(head) and cells[ratio] != "-"
    }


def row(page: str, first: str) -> list[str]:
    """The cells of a table's row, without marks."""
    lines = [line.replace("*", "").replace("`", "") for line in page.splitlines()]
    (line,) = (one for one in lines if one.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("first", "model"), [("GPT-2 step takes longer by", MODELS[1]), ("ResNet-50 step", MODELS[2])]
)
def test_the_readme_quotes_the_table_of_steps(first: str, model: str) -> None:
    found = measured(model)
    ours, wandb, board, _, instruments = row(README, first)
    added = [100 * (found[tool][1] - 1) for tool in ("watch", "watch every=10")]
    assert [float(n) for n in re.findall(r"([\d.]+) %", ours)] == pytest.approx(added, abs=0.5)
    for cell, tool in ((wandb, "wandb.watch*"), (board, "TensorBoard*")):
        assert cell == f"{round(100 * (found[tool][1] - 1))} %"
    assert instruments.split()[0] == str(round(found["torchinstruments*"][1]))


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_of_comparison_quotes_the_table_of_steps(tool: str) -> None:
    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    cells = row(page, tool)
    for model, shown, ratio in zip(
        (MODELS[1], MODELS[2], MODELS[0]), cells[::2], cells[1::2], strict=True
    ):
        ms, times = measured(model)[TOOLS[tool]]
        assert float(shown) == pytest.approx(ms, abs=0.5)
        assert (ratio == "") == (tool == "no hooks")
        assert ratio == "" or float(ratio) == pytest.approx(times, rel=0.01)


def test_the_questions_quote_the_table_of_steps() -> None:
    page = (ROOT / "docs" / "faq.md").read_text("utf-8")
    (answer,) = re.findall(r"## What does it cost\?\n\n(.*?)\n\n", page, re.DOTALL)
    quoted = [float(number) for number in re.findall(r"([\d.]+) %", answer)]
    tools = ("watch", "watch every=10")
    found = [100 * (measured(model)[tool][1] - 1) for tool in tools for model in MODELS[1:]]
    assert quoted == pytest.approx(found, abs=0.5)


def test_every_rule_is_in_the_tables_of_rules() -> None:
    names = {rule.name for rule in default_rules()}
    for page in ("alerts.md", "zh/alerts.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert names == set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)), page
    assert row(README, "says what is wrong")[0] == f"{len(names)} rules, cause first"


def test_the_page_of_alerts_says_where_thresholds_come_from() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    (part,) = re.findall(r"## Where thresholds come from\n(.*?)\n## ", page, re.DOTALL)
    named = [
        name
        for names in re.findall(r"^- (`.*?`): ", part, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    ]
    assert sorted(named) == sorted(rule.name for rule in default_rules())


def test_the_page_of_alerts_says_what_the_rules_advise() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    for rule in default_rules():
        cell = row(page, rule.name)[-1]
        assert re.sub(r" \(\[.*\)$", "", cell) == rule.advice == advice_of(rule.name) != ""
    assert advice_of("a rule of somebody's own") == ""
