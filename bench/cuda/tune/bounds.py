"""bounds(): what bounds the kernels, measured by micro.cu into a CSV file."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

from bench.cuda.tune.ledger import Machine

COLUMNS = (*Machine._fields, "what", "value", "unit", "megahertz")


def bounds(program: Path, path: Path, machine: Machine, seconds: float) -> list[str]:
    """What was found, in words; nothing if the file has it of this machine already."""
    if path.is_file():
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        if [row[: len(machine)] for row in rows[1:2]] == [list(machine)]:
            return []
    try:
        done = subprocess.run(
            [str(program)], capture_output=True, text=True, check=True, timeout=seconds
        )
    except subprocess.CalledProcessError as error:
        return [f"what bounds the kernels was not measured: {error.stderr.strip()}"]
    except subprocess.TimeoutExpired:
        return ["what bounds the kernels was not measured: time ran out"]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for each in found:
            writer.writerow([*machine, *(each[name] for name in COLUMNS[len(machine) :])])
    return [f"{each['what']}: {each['value']:.4g} {each['unit']}" for each in found]
