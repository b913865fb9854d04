"""The index made again from what it is an index of: report documents and acceptances, in the order of time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import InputError
from pytest_llmbench.history import acceptance as acceptances
from pytest_llmbench.history import entry
from pytest_llmbench.history.acceptance import Acceptance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pytest_llmbench.history.entry import SessionEntry


@dataclass(frozen=True, slots=True)
class Found:
    """What a storage folder holds. skipped: (file, reason) of what cannot be read; probes (direct comparisons
    and sessions without a history too), unfinished: how many."""

    sessions: tuple[SessionEntry, ...]
    acceptances: tuple[Acceptance, ...]
    skipped: tuple[tuple[str, str], ...]
    probes: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did. kept: sessions of the old index whose report is gone."""

    found: Found
    sessions: int
    acceptances: int
    kept: int


def look(storage: Path, place: Callable[[Path], str]) -> Found:
    """Read every report under ``storage``/runs and the file of acceptances. place: a run's folder as it is kept."""
    sessions: list[SessionEntry] = []
    skipped: list[tuple[str, str]] = []
    probes = unfinished = 0
    runs = [path for path in storage.glob("runs/*/*") if path.is_dir()]
    controls = [path for path in storage.glob("runs/*/*/control") if (path / "report.json").exists()]
    for folder in sorted([*runs, *controls]):
        report = folder / "report.json"
        if not report.exists():
            unfinished += 1
            continue
        try:
            document = json.loads(report.read_text(encoding="utf-8"))
            if isinstance(document, dict) and _is_kept_out(folder, document):
                probes += 1
                continue
            sessions.append(entry.of_document(document, place(folder)))
        except InputError as exc:
            skipped.append((str(report), exc.reason))
        except (OSError, ValueError) as exc:
            skipped.append((str(report), f"cannot be read: {exc}"))
    accepted: list[Acceptance] = []
    for number, one in acceptances.read(storage):
        if isinstance(one, Acceptance):
            accepted.append(one)
        else:
            skipped.append((f"{storage / acceptances.FILE}:{number}", one))
    return Found(tuple(sessions), tuple(accepted), tuple(skipped), probes, unfinished)


def _is_kept_out(folder: Path, document: Mapping[str, Any]) -> bool:
    """Whether the session itself did not remember it. A control beside a canary may have been slowed with it."""
    beside = folder.parent / "report.json"
    if beside.exists():  # a control's, in the folder of its setup
        of_setup = json.loads(beside.read_text(encoding="utf-8"))
        return bool(of_setup.get("canary")) or of_setup.get("history") is False
    return bool(document.get("probe") or document.get("against")) or document.get("history") is False


def timeline(items: Iterable[SessionEntry | Acceptance]) -> list[SessionEntry | Acceptance]:
    """In the order in which they happened; an acceptance after the sessions that ended in its second."""
    return sorted(items, key=_when)


def _when(item: SessionEntry | Acceptance) -> tuple[str, int, str, str]:
    if isinstance(item, Acceptance):
        return (item.when, 1, item.card_id, item.key)
    return (item.finished, 0, item.session, item.card_id)
