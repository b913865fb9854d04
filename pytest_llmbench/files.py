"""Files that are never half written, and how runs are named, dated and referred to."""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal, TextIO


def write_json(path: Path, document: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it. NaN raises ValueError."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text with the same promise; a write that fails leaves the old file, and nothing beside it."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write that takes the place of ``path`` once it is whole; what a link leads to is replaced, not the link.

    Raises OSError; also for what is there and is no regular file, such as a folder or a device.
    """
    path = _regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _regular(path: Path) -> Path:
    """Where a path leads to."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    if path.exists() and not path.is_file():  # a device, a pipe: replaced, it would be gone
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise OSError(errno.ELOOP, "is a link that leads to itself", str(path))
    return found


def new_session() -> str:
    """A session's name: date and time (UTC), and four random digits for two in one second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(2).hex()}"


def now(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """The time in UTC as ISO 8601; it labels, and nothing is reckoned with it."""
    return datetime.now(UTC).isoformat(timespec=timespec)


def relative(path: Path | str, base: Path) -> str:
    """A path as seen from a folder, with slashes, so that documents can be moved together."""
    return Path(os.path.relpath(path, base)).as_posix()
