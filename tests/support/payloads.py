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
    first, rest = re.findall(r'<script id="(?:payload|rest)"[^>]*>([^<]*)</script>', page)
    whole, later = base64.b64decode(first), base64.b64decode(rest)
    size = int.from_bytes(whole[:4], "little")
    head, whole = zlib.decompress(whole[4 : 4 + size]), whole[4 + size :]
    length = int.from_bytes(head[:4], "little")
    description: dict[str, Any] = json.loads(head[4 : 4 + length])
    small = cut(head[4 + length :], description["lengths"])
    packed = cut(whole, description["blocks"]) | cut(later, description["later"])
    blocks = {name: zlib.decompress(data) for name, data in packed.items()}
    return {**description, "bytes": small, "blocks": blocks}


def scripts_of(first: str, rest: str) -> str:
    """What `Payload.pack` gives, as a page has it."""
    return f'<script id="payload">{first}</script><script id="rest">{rest}</script>'


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
