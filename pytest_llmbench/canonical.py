"""JSON in one spelling, so that what is equal has one hash. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def plain(data: Any) -> Any:
    """Keys as text, tuples as lists, whole floats as integers: what a round trip through a file may change."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float) and data.is_integer():
        return int(data)
    return data


def spelled(data: Any) -> str:
    """Sorted keys, no blanks."""
    return json.dumps(plain(data), sort_keys=True, separators=(",", ":"))


def sha256(data: Any) -> str:
    """SHA-256 of ``spelled``, hexadecimal."""
    return hashlib.sha256(spelled(data).encode()).hexdigest()
