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
print("pandas" in sys.modules, *sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


@pytest.mark.check
def test_steps_import_no_large_libraries(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    there, *late = run_python(tmp_path, "-c", PROGRAM).split()
    assert there == "True"
    assert not {"pandas", "pyarrow", "numpy", "hookstats"}.intersection(late), late
