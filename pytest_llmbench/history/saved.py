"""Saved sessions: one JSON file a name, comparable only with the same card on the same machine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import InputError
from pytest_llmbench.files import write_json
from pytest_llmbench.verdict import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_llmbench.records import CellResult

FORMAT = 1
LISTED = 12
"""More differences than so many are counted, not listed."""


def check_name(field: str, name: str) -> str:
    """A name that can be a file name. Raises InputError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InputError(
            field, name, "not a usable name", "letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def path_of(storage: Path, name: str, card: str) -> Path:
    return storage / "saved" / name / f"{card}.json"


def names(storage: Path) -> list[str]:
    """The saved names there are, oldest first."""
    folder = storage / "saved"
    found = [p for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
    return [p.name for p in sorted(found, key=lambda p: p.stat().st_mtime)]


def save(
    storage: Path, name: str, *, key: dict[str, Any], when: str, run_folder: str, results: Iterable[CellResult]
) -> Path:
    """Write the session's measured figures under a name, replacing an earlier one of that name. Atomic."""
    figures: dict[str, dict[str, Any]] = {}
    for result in results:
        for summary in result.summaries:
            if summary.median is not None:
                figures.setdefault(result.spec.id, {})[summary.name] = {
                    "median": summary.median,
                    "values": list(summary.values),
                    "unit": summary.unit,
                }
    path = path_of(storage, name, key["card_id"])
    write_json(path, {"format": FORMAT, "name": name, "saved": when, "run": run_folder, "key": key, "figures": figures})
    return path


def why_not_saved(storage: Path, name: str, card: str, results: Mapping[str, CellResult], complete: bool) -> str | None:  # noqa: FBT001
    """Why a session may not be saved under a name; None where it may.

    Only a session whose promised cells are all measured is saved, and none takes the place of one that knows more cells:
    a comparison would then pass for want of a reference.
    """
    if not complete:
        bad = [f"{cell} {result.status}" for cell, result in results.items() if result.status != "measured"]
        return f"not every promised cell is measured ({', '.join(bad) or 'the session ended early'})"
    try:
        earlier = load(storage, name, card)
    except InputError:
        return None  # none there, or one that cannot be read
    lost = [cell for cell in earlier["figures"] if cell not in results]
    return (
        f"the session saved under this name also has {', '.join(lost)}: measure those too, or save under another name"
        if lost
        else None
    )


def load(storage: Path, name: str, card: str) -> dict[str, Any]:
    """A saved session. Raises InputError that lists the names there are."""
    path = path_of(storage, name, card)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(names(storage)) or "none yet"
        raise InputError(
            "--llmbench-compare",
            name,
            f"no session of card {card} is saved under this name (saved: {known})",
            f"save one with --llmbench-save {name}",
        ) from None
    except (ValueError, OSError) as exc:
        raise InputError(
            "--llmbench-compare",
            name,
            f"{path} cannot be read: {getattr(exc, 'strerror', None) or 'it is no JSON'}",
            "delete it and save again",
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = f"format {document.get('format')}" if isinstance(document, dict) else "no object in it"
        raise InputError(
            "--llmbench-compare", name, f"{path} has {found}, this version reads format {FORMAT}", "save again"
        )
    key = document.get("key")
    whole = isinstance(key, dict) and all(isinstance(key.get(side), dict) for side in ("card", "machine"))
    if not whole or not isinstance(document.get("figures"), dict) or not {"name", "saved"} <= document.keys():
        raise InputError("--llmbench-compare", name, f"{path} is damaged: parts of it are missing", "save again")
    return document


def refuse_other(saved: dict[str, Any], key: dict[str, Any]) -> None:
    """Raise InputError with every difference, unless card identity and machine are the same."""
    old, new = saved["key"], key
    if "cells" in old.get("card", {}) and "cells" in new["card"]:
        # A cell that only one side has is no contradiction: it has no reference, and the verdict says so.
        both = old["card"]["cells"].keys() & new["card"]["cells"].keys()
        old, new = (
            side | {"card": side["card"] | {"cells": {cell: side["card"]["cells"][cell] for cell in both}}}
            for side in (old, new)
        )
    differences = list(_differences(old, new))
    if differences:
        more = [f"and {len(differences) - LISTED} more"] if len(differences) > LISTED else []
        listed = "\n    ".join([*differences[:LISTED], *more])
        raise InputError(
            "--llmbench-compare",
            saved["name"],
            f"another setup or machine; its figures say nothing about this one:\n    {listed}",
            "compare with a session of the same card on the same machine, or save a new one",
        )


def _differences(old: Any, new: Any, path: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path}: saved {json.dumps(old)}, now {json.dumps(new)}"


def references(
    saved: dict[str, Any], cell: str, tolerances: Mapping[str, float], default: float
) -> dict[str, Reference]:
    """The saved figures of one cell, each with the tolerance that applies to it."""
    return {
        name: Reference(
            name=saved["name"],
            value=figure["median"],
            runs=len(figure["values"]),
            when=saved["saved"][:10],
            tolerance=tolerances.get(name, default),
        )
        for name, figure in saved["figures"].get(cell, {}).items()
    }
