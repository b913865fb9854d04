"""Files that are never half written, and how runs are named, dated and referred to."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Literal


def write_json(path: Path, document: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it. NaN raises ValueError."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text with the same promise; a write that fails leaves the old file, and nothing beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def new_session() -> str:
    """A session's name: date and time (UTC), and four random digits for two in one second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(2).hex()}"


def now(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """The time in UTC as ISO 8601; it labels, and nothing is reckoned with it."""
    return datetime.now(UTC).isoformat(timespec=timespec)


def relative(path: Path | str, base: Path) -> str:
    """A path as seen from a folder, with slashes, so that documents can be moved together."""
    return Path(os.path.relpath(path, base)).as_posix()
