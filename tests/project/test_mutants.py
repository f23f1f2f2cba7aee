"""The mutants fit the sources; `make mutants` shows that each is caught."""

from __future__ import annotations

import pytest
from mutants.mutant import Mutant
from mutants.table import MUTANTS
from support.paths import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_what_a_mutant_replaces_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert (ROOT / mutant.test.split("::")[0].split()[0]).is_file()
