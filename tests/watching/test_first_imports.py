"""watch(out=): what takes long to import is imported before the first step, not beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import run_python

PROGRAM = """
import sys
import torch
import hookstats as hs

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
w = hs.watch(model, optimizer, out="run")
before = set(sys.modules)
for _ in range(3):
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
w.close()
late = {name.split(".")[0] for name in set(sys.modules) - before}
print("pandas" in sys.modules, "pyarrow" in sys.modules, *sorted(late))
"""


@pytest.mark.check
def test_steps_import_no_large_libraries(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    has_pandas, has_pyarrow, *late = run_python(tmp_path, "-c", PROGRAM).split()
    assert (has_pandas, has_pyarrow) == ("False", "True")
    assert not {"pyarrow", "hookstats"}.intersection(late), late


def test_files_are_not_locked_before_a_run_is_opened(tmp_path: Path) -> None:
    program = "import sys, torch; old = {*sys.modules}; import hookstats; hookstats.watch; "
    assert run_python(tmp_path, "-c", program + "print({*sys.modules} - old & {'filelock'})") == (
        "set()\n"
    )
