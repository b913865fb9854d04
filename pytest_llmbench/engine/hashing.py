"""SHA-256 of files, remembered by path, size and time of change, so that 20 GB are read once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK_BYTES = 4 * 1024 * 1024
_logger = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/pytest-llmbench``, else ``~/.cache/pytest-llmbench``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "pytest-llmbench"


def hash_file(
    path: str | os.PathLike[str],
    cache_dir: Path | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """The file's SHA-256 as 64 hex digits, from the cache where path, size and mtime (ns) are those of the last reading.

    cache_dir: ``default_cache_dir()`` where None. One small JSON file a hashed file, replaced atomically, so writers at the
    same time cannot harm each other. progress(done_bytes, size_bytes) is called a block while the file is read.
    Raises InputError when the file is not there or cannot be read.
    """
    real = Path(path).resolve()
    try:
        before = real.stat()
        cache_file = _cache_file(real, cache_dir or default_cache_dir())
        known = _remembered(cache_file, real, before)
        if known is not None:
            return known
        digest = _digest(real, before.st_size, progress)
        after = real.stat()
    except OSError as error:
        raise InputError("file", str(path), error.strerror or str(error), "give the path of a readable file") from None
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        _remember(cache_file, real, before, digest)
    return digest


def _digest(path: Path, size: int, progress: Callable[[int, int], None] | None) -> str:
    digest = hashlib.sha256()
    block = bytearray(_BLOCK_BYTES)
    view = memoryview(block)
    done = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
            done += count
            if progress is not None:
                progress(done, size)
    return digest.hexdigest()


def _cache_file(path: Path, cache_dir: Path) -> Path:
    return cache_dir / "sha256" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def _key(path: Path, stat: os.stat_result) -> dict[str, str | int]:
    return {
        "path": os.fsencode(path).decode("utf-8", "backslashreplace"),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
    }


def _remembered(cache_file: Path, path: Path, stat: os.stat_result) -> str | None:
    try:
        entry = json.loads(cache_file.read_bytes())
        digest = entry.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None  # no entry, or one that nobody can read: the file itself is the truth
    return digest if entry == _key(path, stat) and isinstance(digest, str) else None


def _remember(cache_file: Path, path: Path, stat: os.stat_result, digest: str) -> None:
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=cache_file.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            json.dump({**_key(path, stat), "sha256": digest}, file)
        Path(file.name).replace(cache_file)
    except OSError as error:
        # A read-only home is no reason to fail: the file is read again next time.
        _logger.warning("cannot keep the hash of %s in %s: %s", path, cache_file.parent, error)
