"""run.json and the file of each rank: what a run was, who wrote it, how each rank ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from hookstats._version import __version__
from hookstats.runs.files import naming, read_json
from hookstats.runs.format import (
    FORMAT,
    RUN_JSON,
    check_format,
    listed_ranks,
    rank_json,
)
from hookstats.stats.bins import Bins, LinearBins, LogBins, bins_from_dict
from hookstats.stats.printable import printable

_MAY_DIFFER = ("torch", "every", "channels", "budget", "grad_scale", "setup", "rules")
_BINS = ("bins", "channel_bins")


def new_run_json() -> dict[str, Any]:
    """The content of run.json, but for its sessions."""
    return {"format": FORMAT, "hookstats": __version__, "created": now()}


def new_rank_json(
    rank: int,
    header: Mapping[str, Any],
    max_bytes: int | None,
    world: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of the file of a rank that begins to write."""
    return {
        **new_run_json(),
        "rank": rank,
        "closed": None,
        "max_bytes": max_bytes,
        "thinned": 0,
        "header": dict(header),
        "coverage": None,
        "earlier": [],
        **({} if world is None else {"world": dict(world)}),
    }


def continue_rank_json(own: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the file of a rank that continues what it wrote `before`."""
    session = {key: before.get(key) for key in ("created", "closed", "hookstats", "coverage")}
    header = _with_samples(own["header"], before["header"])
    return {
        **own,
        "header": header,
        "earlier": [*before.get("earlier", []), session],
    }


def _with_samples(header: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A header whose bins have a `sample` if those of another one have."""
    sampled = {
        name: {**header[name], "sample": other[name]["sample"]}
        for name in _BINS
        if header.get(name) and "sample" in (other.get(name) or {}) and "sample" not in header[name]
    }
    return {**header, **sampled}


def read_run_json(run: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or a hookstats of another format wrote it.
    """
    path = run / RUN_JSON
    with naming(path):
        content: dict[str, Any] = read_json(path)
        check_format(path, content)
        return content


def wider_limit(run: Path, rank: int, max_bytes: int) -> int | None:
    """The limit of what a rank wrote into a run before, if that is wider than `max_bytes`."""
    try:
        before = read_rank_json(run, rank)["max_bytes"]
    except (OSError, ValueError, LookupError):  # no run, which is fine, or said later
        return max_bytes
    is_wider = before is None or (isinstance(before, int) and before > max_bytes)
    return before if is_wider else max_bytes


def read_rank_json(run: Path, rank: int) -> dict[str, Any]:
    """The content of a rank's file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or a hookstats of another format wrote it.
    """
    path = run / rank_json(rank)
    if not path.exists():
        raise FileNotFoundError(f"{printable(str(path))}: rank {rank} has written no header")
    with naming(path):
        own: dict[str, Any] = read_json(path)
        check_format(path, own)
        if own.get("rank") != rank:
            raise ValueError(f"it belongs to rank {own.get('rank')!r}")
        for name in _BINS:
            bins_of(own["header"], name)
        return own


def headed_ranks(run: Path) -> list[int]:
    """The ranks that have a header, ascending.

    Raises:
        ValueError: no rank has one.
    """
    ranks = listed_ranks([path.name for path in run.iterdir()])
    if not ranks:
        raise ValueError(f"{run / rank_json(0)}: no rank has written a header")
    return ranks


def unite_headers(headers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The header of the first rank, with the modules and parameters of all ranks; with bins that
    are sampled if those of any rank are."""
    united: dict[str, Any] = dict(headers[0])
    for header in headers:
        united = _with_samples(united, header)
    for name in ("modules", "parameters"):
        if any(header.get(name) is not None for header in headers):
            united[name] = {}
            for header in headers:
                united[name] |= (header.get(name) or {}) | united[name]
    return united


def unite_coverage(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The coverage of several ranks as one, the counts of a site added up; None if any is None."""
    if len(found) == 1 or None in found:
        return None if None in found else found[0]
    coverages = [one for one in found if one is not None]
    rows: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in (row for one in coverages for row in one.get("rows", ())):
        key = row.get("name"), row.get("kind")
        rows[key] = _sum(rows[key], row) if key in rows else row
    united = dict(coverages[0])
    for one in coverages[1:]:
        united = _sum(united, {k: v for k, v in one.items() if k != "steps"})
    steps = [one["steps"] for one in coverages if "steps" in one]
    united |= {"rows": list(rows.values())} if rows else {}
    return united | ({"steps": max(steps)} if steps else {})


def _sum(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Numbers added up, objects united; of all else that of `a`, unless it is null."""
    united = dict(a)
    for key, value in b.items():
        mine = a.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            united[key] = _sum(mine, value)
        elif type(mine) is type(value) is int:
            united[key] = mine + value
        elif mine is None:
            united[key] = value
    return united


def bins_of(header: Mapping[str, Any], name: str) -> Bins | None:
    """The bins that a header has under this name, as an object or as its description."""
    value = header.get(name)
    if value is None or isinstance(value, (LinearBins, LogBins)):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} = {value!r}: expected LinearBins, LogBins, its dict or None")
    return _bins(json.dumps(value))


@lru_cache(maxsize=64)  # each header is read often
def _bins(text: str) -> LinearBins | LogBins:
    return bins_from_dict(json.loads(text))


def check_settings(theirs: Mapping[str, Any], ours: Mapping[str, Any], what: str) -> None:
    """Raise a ValueError that names the first setting in which two headers differ.

    what: where `theirs` is from. What `_MAY_DIFFER` has may differ, and so may the `sample` of
    bins: counts that differ in it merge.
    """
    theirs, ours = (json.loads(json.dumps(header)) for header in (theirs, ours))
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        a, b = (_entry(header, key) for header in (theirs, ours))
        if a == b or key in _MAY_DIFFER:
            continue
        if isinstance(a, dict) and isinstance(b, dict):  # a module or parameter in many
            name = next(name for name in [*b, *a] if a.get(name) != b.get(name))
            key, a, b = f"{key}[{name!r}]", a.get(name), b.get(name)
        raise ValueError(f"{what} has {key} = {a!r}: expected {b!r}, as in this run")


def _entry(header: Mapping[str, Any], key: str) -> Any:
    """An entry of a header; null means the same as absent."""
    value = header.get(key)
    if key in _BINS and isinstance(value, dict):
        return {name: value[name] for name in value if name != "sample"}
    return value


def now() -> str:
    """This moment: ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
