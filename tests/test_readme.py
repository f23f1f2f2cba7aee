"""The README's example runs as it stands and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def shape(text: str) -> str:
    """The text without its decimals, and without the spaces that their widths bring about."""
    return "".join(NUMBER.sub("#", text).split())


def test_the_example_prints_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    match = re.search(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", README, re.DOTALL)
    assert match is not None
    code, promised = match.groups()
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert shape(printed) == shape(promised)
    # Other processors add in another order.
    assert numbers(printed) == pytest.approx(numbers(promised), abs=2e-3)
