"""What can be refused before anything is collected: settings that contradict each other, the cards or the machine."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from pytest_llmbench.asked import canary, changes, continuing, keeps_history
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_llmbench.asked import LoadedAgainst, LoadedCard
    from pytest_llmbench.options import Settings


def check_settings(settings: Settings, cards: Sequence[LoadedCard], against: LoadedAgainst | None = None) -> None:
    """What can be refused before anything is collected. Raises InputError."""
    from pytest_llmbench import resume  # noqa: PLC0415
    from pytest_llmbench.card import FIGURES, PARTS  # noqa: PLC0415
    from pytest_llmbench.history import saved  # noqa: PLC0415
    from pytest_llmbench.plan_changes import refuse_without_effect  # noqa: PLC0415

    planned = list(dict.fromkeys(part for loaded in cards for part in loaded.card.plan.parts))
    for part in settings.parts or ():
        if part not in PARTS:
            raise InputError("--llmbench-parts", part, "no such part", f"parts are {', '.join(PARTS)}")
        if not any(part in loaded.card.plan.parts for loaded in cards):
            raise InputError(
                "--llmbench-parts",
                part,
                f"not in the card's plan ({', '.join(planned)})",
                'add it to "plan": {"parts": …}',
            )
    measured = [part for part in planned if settings.parts is None or part in settings.parts]
    where = "--llmbench-parts" if settings.parts else "the card" if len(cards) == 1 else "every card"
    refuse_without_effect(changes(settings), measured, where)
    figures = sorted({name for names in FIGURES.values() for name in names})
    for figure in settings.tolerances:
        if figure not in figures:
            raise InputError("--llmbench-compare-fail", figure, "no such figure", f"figures are {', '.join(figures)}")
    _check_writable("--llmbench-storage", settings.storage)
    _check_file("--llmbench-json", settings.json)
    _check_file("--llmbench-verdict", settings.verdict)
    if settings.json is not None and settings.json == settings.verdict:
        raise InputError(
            "--llmbench-verdict", str(settings.verdict), "is the file of --llmbench-json too", "name another file"
        )
    if settings.json is not None and len(cards) > 1:
        raise InputError(
            "--llmbench-json", str(settings.json), "one file for several cards' reports", "measure one card at a time"
        )
    every = [*(loaded.card for loaded in cards), *([against.old] if against else [])]
    every += [loaded.control.card for loaded in cards if loaded.control is not None]
    known = {token.strip("<>") for one in every for _, token in one.placeholders}
    for name in settings.variables:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InputError(
                "--llmbench-var", name, f"no card has this placeholder (there: {there})", "correct the name"
            )
    if settings.model is not None and len(cards) > 1:
        raise InputError(
            "--llmbench-model", str(settings.model), "one file for several cards", "measure one card at a time"
        )
    if settings.model is not None and not settings.model.is_file():
        reason = "is a folder" if settings.model.is_dir() else "there is no such file"
        raise InputError("--llmbench-model", str(settings.model), reason, "name the model's .gguf file")
    _refuse_judged_probe(settings)
    canary(settings)
    wish = continuing(settings)
    if wish is not None:
        refused = []
        for loaded in cards:
            try:
                resume.find(settings.storage, loaded.card.id, wish)
            except resume.NothingToGoOnError as exc:  # of several cards, some may not have been reached
                refused.append(exc)
        if refused and (wish.kind == "supplement" or len(refused) == len(cards)):
            raise refused[0]
    if settings.compare is not None:
        for loaded in cards:
            saved.load(settings.storage, settings.compare, loaded.card.id)
    _check_gate(settings)
    for control in filter(None, (loaded.control for loaded in cards)):
        from pytest_llmbench.control import turn_of  # noqa: PLC0415

        turn_of(control.card)


def _refuse_judged_probe(settings: Settings) -> None:
    wishes = {
        "--llmbench-save": settings.save,
        "--llmbench-autosave": settings.autosave or None,
        "--llmbench-compare": settings.compare,
        "--llmbench-resume": settings.resume,
        "--llmbench-supplement": settings.supplement,
        "--llmbench-accept": settings.accept,
        "--llmbench-require-baseline": settings.require_baseline or None,
    }
    for flag, value in wishes.items():
        if settings.probe and value is not None:
            raise InputError(
                "--llmbench-probe",
                None,
                f"a probe is never a measurement: {flag} has no use for it",
                f"leave out {flag}",
            )


def _check_gate(settings: Settings) -> None:
    """Refuse what cannot be judged by, before anything is measured. Raises InputError."""
    from pytest_llmbench.marks import file as marks_file  # noqa: PLC0415

    if settings.marks_named and not settings.marks.exists():
        raise InputError(
            "--llmbench-marks",
            str(settings.marks),
            "there is no such file",
            f"name the file of marks, or leave it out: {marks_file.FILE_NAME} in pytest's root folder may be absent",
        )
    marks_file.read(settings.marks)
    if settings.no_history:
        for flag, given in (("--llmbench-accept", settings.accept), ("--llmbench-history", settings.history)):
            if given is not None:
                raise InputError(
                    flag, given, "there is no history with --llmbench-no-history", "leave out one of the two"
                )
        if settings.require_baseline and settings.baseline is None:
            raise InputError(
                "--llmbench-require-baseline",
                None,
                "no baseline can be there without a history",
                "leave out --llmbench-no-history, or name a file with --llmbench-baseline",
            )
    if settings.accept is not None and settings.baseline is not None:
        raise InputError(
            "--llmbench-accept",
            settings.accept,
            "a file of baselines is not changed by a session",
            "accept without --llmbench-baseline, then write the file: llmbench baseline export",
        )
    if settings.baseline is not None:
        from pytest_llmbench.history.file import BaselineFile  # noqa: PLC0415

        BaselineFile.load(settings.baseline)
    if keeps_history(settings):
        from pytest_llmbench.history.connect import check  # noqa: PLC0415 - a database package behind it

        check(settings.storage, settings.history)


def _check_file(flag: str, path: Path | None) -> None:
    """Refuse a file that cannot be written at the end, before anything is measured for it."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise InputError(flag, str(path), "is a folder", "name a file")
        if path.exists() and not path.is_file():  # a device would be replaced by a file
            raise InputError(flag, str(path), "is no regular file", "name another file")
        _check_writable(flag, path.parent)
    except OSError as exc:  # a folder that may not be looked into, a name that is too long
        raise InputError(flag, str(path), f"cannot be written: {exc.strerror}", "name another file") from None


def _check_writable(flag: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before anything is measured for it."""
    try:
        there = next(one for one in (folder, *folder.parents) if one.exists())
    except OSError as exc:  # a folder that may not be looked into, a name that is too long
        raise InputError(flag, str(folder), f"cannot be used: {exc.strerror}", "name another place") from None
    if not there.is_dir():
        raise InputError(flag, str(folder), f"{there} is a file, not a folder", "name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(flag, str(folder), f"{there} may not be written by this user", "name another place")
    try:  # a file system can refuse what the permissions allow (/proc, a full or read-only disk)
        tempfile.TemporaryFile(dir=there).close()
    except OSError as exc:
        raise InputError(
            flag, str(folder), f"{there} cannot be written: {exc.strerror}", "name another place"
        ) from None
