"""Two cards side by side: what both promise, what must not differ, and what does. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_llmbench import plan
from pytest_llmbench.errors import InputError
from pytest_llmbench.history import keys
from pytest_llmbench.measure import request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.contract import Contract
    from pytest_llmbench.records import CellSpec

FLAG = "--llmbench-against"
LISTED = 12
"""More contradictions than so many are counted, not listed."""
_ENGINE = ("engine", "engine program", "engine libraries", "engine commit")


def common(new: SetupCard, old: SetupCard) -> tuple[tuple[CellSpec, ...], tuple[str, ...], tuple[str, ...]]:
    """The cells (of the new card) that both plans have, and the ids of those that only the new or only the old one has.

    Raises InputError where nothing is left.
    """
    mine, theirs = plan.cells(new), plan.cells(old)
    old_ids, new_ids = {spec.id for spec in theirs}, {spec.id for spec in mine}
    both = tuple(spec for spec in mine if spec.id in old_ids)
    if not both:
        raise InputError(
            FLAG,
            old.id,
            f"the two cards have no cell in common (new: {', '.join(new_ids)}; old: {', '.join(old_ids)})",
            "give both cards the same plan",
        )
    return (
        both,
        tuple(spec.id for spec in mine if spec.id not in old_ids),
        tuple(spec.id for spec in theirs if spec.id not in new_ids),
    )


def refuse(new: SetupCard, old: SetupCard, cells: Iterable[CellSpec]) -> None:
    """Raise InputError with every difference, unless both cards measure these cells in the same way.

    The same are: cell definitions, runs and warm-ups, what requests carry (sampling, thinking), and the rules of validity.
    """
    known = {spec.id: spec for spec in plan.cells(old)}
    mine = [spec for spec in cells if spec.id in known]
    found = keys.differences(_measured(old, [known[spec.id] for spec in mine]), _measured(new, mine))
    if found:
        listed = "\n    ".join([*found[:LISTED], *([f"and {len(found) - LISTED} more"] if len(found) > LISTED else [])])
        raise InputError(
            FLAG,
            old.id,
            f"the two cards do not measure the same (old -> new):\n    {listed}",
            "make them equal in this; engine, server arguments and model may differ",
        )


def _measured(card: SetupCard, cells: Sequence[CellSpec]) -> dict[str, Any]:
    parts = {spec.part for spec in cells}
    return {
        "machine": {},
        "card": {
            "warm-ups": {spec.part: asdict(spec) for spec in plan.cells(card) if spec.warmups and spec.part in parts},
            "client_check": card.client_check.model_dump(mode="json"),
            "validity": card.validity.model_dump(mode="json"),
            "guard": card.watch.model_dump(mode="json"),
            "cells": {spec.id: asdict(spec) | {"request": request.fields(card, spec)} for spec in cells},
        },
    }


def differences(new: SetupCard, old: SetupCard) -> tuple[str, ...]:
    """What differs between the cards and may, a line each, ``old -> new``: model, server arguments, environment, program."""
    sides = [
        {
            "machine": {},
            "card": {name: value for name, value in plan.identity(card).items() if name not in _SAME}
            | {"engine.binary": card.engine.model_dump(mode="json", exclude_none=True).get("binary")},
        }
        for card in (old, new)
    ]
    return tuple(keys.differences(*sides))


_SAME = {"cells", "sampling", "seed", "thinking"}  # refused where they differ


def engines(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """How the builds differ, known once both programs are found: ``engine b12223 -> b12301``. old, new: environments."""
    before, after = (
        {name: value for name, value in keys.attributes(one).items() if name in _ENGINE} for one in (old, new)
    )
    return keys.changes([before], after)


def prompts(old: Contract, new: Contract) -> str | None:
    """Whether both sides were promised the same prompts, in words; None where they were.

    Prompts of N tokens are made with the server's own counting: another tokenizer makes other texts of the same length.
    """
    before, after = (
        {(one.cell, one.run, one.request): one.prompt.sha256 for one in contract.prompts} for contract in (old, new)
    )
    both = before.keys() & after.keys()
    other = sorted({cell for cell, run, request in both if before[cell, run, request] != after[cell, run, request]})
    return f"prompts of {', '.join(other)}: other texts of the same length" if other else None
