"""The payload of a page, unpacked as the page does it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import numpy as np


def payload_of(page: str) -> dict[str, Any]:
    """The description in a page; its small arrays are "bytes", by name, and its blocks "blocks"."""
    found = re.search(r'<script id="payload"[^>]*>([^<]*)</script>', page)
    assert found
    whole = base64.b64decode(found[1])
    size = int.from_bytes(whole[:4], "little")
    head, whole = zlib.decompress(whole[4 : 4 + size]), whole[4 + size :]
    length = int.from_bytes(head[:4], "little")
    description: dict[str, Any] = json.loads(head[4 : 4 + length])
    small = cut(head[4 + length :], description["lengths"])
    blocks = {name: zlib.decompress(b) for name, b in cut(whole, description["blocks"]).items()}
    return {**description, "bytes": small, "blocks": blocks}


def cut(data: bytes, lengths: list[tuple[str, int]]) -> dict[str, bytes]:
    found, at = {}, 0
    for name, length in lengths:
        found[name] = data[at : at + length]
        at += length
    assert at == len(data)
    return found


def numbers_of(packed: dict[str, Any], name: str) -> Any:
    """The codes of an array, [S, columns], from the differences of their planes."""
    (about,) = (one for one in packed["arrays"] if one["name"] == name)
    width, sites = about["width"], len(packed["sites"])
    planes = np.frombuffer(packed["blocks"][name], np.uint8).reshape(width, sites, -1)
    steps = sum(planes[k].astype(np.int64) << 8 * k for k in range(width))
    return np.cumsum(steps, axis=1) % 256**width
