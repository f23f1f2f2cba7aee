"""Run directories as a stranger may have made them: the case of each number, always the same."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.rewritten import reseal, rewritten
from support.stranger_values import NUMBERS, TEXTS, changed, damaged, odd, to_text

from hookstats.runs.format import PART_KEY

Files = dict[str, bytes]
"""The content of a run directory by path."""


_DIGIT = "\N{ARABIC-INDIC DIGIT ZERO}"  # which is a digit to regular expressions


def build(case: int, bases: list[Files], out: Path, victim: Path) -> str:
    """Make the directory of a case; returns what was done.

    victim: a file outside, which links may point to.
    """
    rng = random.Random(case)
    files = dict(rng.choice(bases))
    done = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        change = rng.choices(list(CHANGES), list(CHANGES.values()))[0]
        change(files, rng)
        done.append(change.__name__)
    for folder in {name.rpartition("/")[0] for name in files}:
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_bytes(content)
    if rng.random() < 0.15:
        done.append(_put_special(out, rng, victim))
    return ", ".join(done)


def change_json(files: Files, rng: random.Random) -> None:
    """Change a value in a JSON file."""
    name = _one(files, rng, ".json")
    with suppress(ValueError, RecursionError):  # it is damaged already
        files[name] = to_text(changed(json.loads(files[name]), rng)).encode()


def damage_json(files: Files, rng: random.Random) -> None:
    """Damage the bytes of a JSON file."""
    name = _one(files, rng, ".json")
    files[name] = damaged(files[name] or b" ", rng)


def change_alerts(files: Files, rng: random.Random) -> None:
    """Change a value of an alert, or drop, double or reorder alerts, or damage their bytes."""
    name = _one(files, rng, ".jsonl")
    lines = files[name].splitlines(keepends=True) or [b"\n"]
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0 | 1 | 2:
            with suppress(ValueError, RecursionError):  # it is damaged already
                value = rng.choice((json.loads(lines[at]), {"rewind": 1}))
                lines[at] = to_text(changed(value, rng)).encode() + b"\n"
        case 3:
            lines = rng.choices(lines, k=rng.randrange(len(lines) + 3))
        case 4:
            lines = lines * 400
        case _:
            lines[at] = damaged(lines[at], rng)
    files[name] = b"".join(lines)


def change_about(files: Files, rng: random.Random) -> None:
    """Change what the metadata of a part say, with checksums that are right."""

    def change(table: pa.Table, about: Any) -> tuple[pa.Table, Any]:
        return table, changed(about, rng)

    _rewrite(files, rng, change)


def change_column(files: Files, rng: random.Random) -> None:
    """Change values of a column, with checksums that are right."""

    def change(table: pa.Table, about: Any) -> tuple[pa.Table, Any]:
        name = rng.choice(table.column_names)
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        column = table.column(at).combine_chunks()
        if rng.random() < 0.3:  # as they are, of another type or nullable
            type = rng.choice((pa.int64(), pa.float64(), pa.string(), pa.list_(pa.int64())))
            field = rng.choice((pa.field(name, type), field.with_nullable(True)))
        values = _odd_values(column.to_pylist(), field.type, rng)
        return table.set_column(at, field, pa.array(values, field.type)), about

    _rewrite(files, rng, change)


def change_rows(files: Files, rng: random.Random) -> None:
    """Drop, double or reorder rows or columns of a part, with checksums that are right."""

    def change(table: pa.Table, about: Any) -> tuple[pa.Table, Any]:
        names = table.column_names
        match rng.randrange(5):
            case 0:
                table = table.slice(rng.randrange(table.num_rows + 1))
            case 1:
                table = pa.concat_tables([table, table])
            case 2:
                table = table.drop_columns([rng.choice(names)])
            case 3:
                again = rng.choice(names)
                table = table.append_column(table.schema.field(again), table.column(again))
            case _:
                order = rng.sample(range(table.num_rows), table.num_rows)
                table = table.take(order)
        return table, about

    _rewrite(files, rng, change)


def damage_part(files: Files, rng: random.Random) -> None:
    """Damage the bytes of a part; mostly with checksums that are right."""
    name = _one(files, rng, ".parquet")
    content = files[name] or b" "
    flipped = bytearray(content)
    if rng.random() < 0.3 or len(content) < 100:
        files[name] = damaged(content, rng)
        return
    # The footer, which says where everything lies and how much there is, more often.
    length = min(int.from_bytes(content[-8:-4], "little"), len(content) - 9)
    start = len(content) - 8 - length if rng.random() < 0.6 else 4
    for _ in range(rng.choice((1, 1, 2, 5))):
        odd_byte = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        flipped[rng.randrange(start, len(content) - 8)] = odd_byte
    with suppress(*_UNREADABLE):  # damaged already
        files[name] = reseal(content, bytes(flipped))


def rename(files: Files, rng: random.Random) -> None:
    """Give a file another name, or the name of another; many copies, names of all kinds."""
    name = rng.choice(list(files))
    rank, number, step = (rng.choice((0, 1, 7, 99_999, 2**31, 2**63, 10**40)) for _ in range(3))
    other = rng.choice(
        (
            f"parts/{rank:05d}-{number:06d}-{step:012d}.parquet",
            f"scalars/{rank:05d}-{number:06d}-{step:012d}.parquet",
            f"alerts-{rank:05d}.jsonl",
            f"lock-{rank:05d}.json",
            f"run-{rank:05d}.json",
            "run.json",
            f"parts/.{rank:05d}.x.tmp",
            "parts/\x1b[2J\n.parquet",
            f"parts/00000-{_DIGIT * 6}-000000000000.parquet",
            rng.choice(list(files)),
        )
    )
    files[other] = files[name] if rng.random() < 0.5 else files.pop(name)
    if rng.random() < 0.05:
        for i in range(200):
            files[f"parts/{rank % 10:05d}-{i:06d}-000000000000.parquet"] = files[other]


CHANGES: dict[Callable[[Files, random.Random], None], float] = {
    change_json: 3,
    damage_json: 1,
    change_alerts: 1.5,
    change_about: 2,
    change_column: 3,
    change_rows: 1,
    damage_part: 4,
    rename: 1,
}
"""What is done to the content, and how often."""


def _one(files: Files, rng: random.Random, suffix: str) -> str:
    """The name of a file; an empty one where there is none of this kind any more."""
    names = [name for name in files if name.endswith(suffix)]
    if not names:
        files[name := f"none{suffix}"] = b""
        return name
    return rng.choice(names)


def _rewrite(
    files: Files, rng: random.Random, change: Callable[[pa.Table, Any], tuple[pa.Table, Any]]
) -> None:
    name = _one(files, rng, ".parquet")
    with suppress(*_UNREADABLE):  # where it is damaged already
        text, table = _opened(files[name])
        about = json.loads(text)
        with suppress(pa.ArrowException, TypeError, OverflowError):  # nothing that Arrow can write
            table, about = change(table, about)
            files[name] = rewritten(table, to_text(about))


@lru_cache(maxsize=64)
def _opened(part: bytes) -> tuple[bytes, pa.Table]:
    """What the metadata of a part say, and its rows."""
    about = pq.read_metadata(pa.BufferReader(part)).metadata[PART_KEY]
    return about, pq.read_table(pa.BufferReader(part), use_threads=False)


_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError)


def _odd_values(values: list[Any], type: Any, rng: random.Random) -> list[Any]:
    """The values with some replaced by odd ones of the type."""

    def one(type: Any) -> Any:
        if pa.types.is_list(type):
            return [one(type.value_type) for _ in range(rng.choice((0, 1, 5, 300)))]
        if pa.types.is_floating(type):
            return float(rng.choice((0.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"))))
        if pa.types.is_integer(type):
            width = 2 ** (type.bit_width - 1)
            return max(-width, min(width - 1, int(rng.choice(NUMBERS[:13]))))
        return rng.choice(TEXTS) if rng.random() < 0.9 else None

    share = rng.choice((0.05, 0.3, 1.0))
    return [one(type) if rng.random() < share else value for value in values] or [odd(rng)]


def _put_special(out: Path, rng: random.Random, victim: Path) -> str:
    """Put something that is no regular file into the place of a file or directory."""
    path = rng.choice([path for path in out.rglob("*") if not path.is_dir()])
    if rng.random() < 0.1 and (out / "parts").is_dir():
        path = out / "parts"
        path.rename(out / "elsewhere")
    else:
        path.unlink()
    match rng.randrange(9):
        case 0:
            os.mkfifo(path)
        case 1:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.relpath(path))
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(path.name)  # to itself
        case 4:
            path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem")))
        case 5:
            path.symlink_to(victim)
        case 6:
            path.symlink_to("nowhere")
        case 7:
            with path.open("wb") as file:
                file.truncate(1 << 40)  # takes no room on the disk
        case _:
            path.symlink_to(out)
    return f"special {path.name}"
