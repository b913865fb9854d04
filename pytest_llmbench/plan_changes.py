"""Changes of a card's plan from the command line: other levels, depths, sizes and runs, and trial runs.

They are made before the contract is written, so that the contract and the baseline's key show the plan as measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pytest_llmbench import plan
from pytest_llmbench.card import PARTS, SetupCard
from pytest_llmbench.card.words import faults_in
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """What replaces the card's lists; None: the card's own. depths: of prefill and context; runs: of every part but fit
    and long_answer, which have one. probe: one run each, 128 tokens at most, no warm-up."""

    levels: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None
    runs: int | None = None
    probe: bool = False

    def to_json(self) -> dict[str, Any]:
        """The changes as flags, for the contract; empty where there are none."""
        said: dict[str, Any] = {
            f"--llmbench-{name}": value
            for name in ("levels", "depths", "sizes", "runs")
            if (value := getattr(self, name)) is not None
        }
        return said | ({"--llmbench-probe": True} if self.probe else {})


# The parts in which a flag changes something.
_PARTS_OF = {
    "levels": ("concurrency",),
    "depths": ("prefill", "context"),
    "sizes": ("fit",),
    "runs": ("decode", "prefill", "concurrency", "context"),
}


def refuse_without_effect(changes: PlanChanges, planned: Sequence[str], where: str) -> None:
    """Raise InputError for a change of parts of which none is measured.

    planned: the parts that are; where: what says so, for the message.
    """
    for name, parts in _PARTS_OF.items():
        value = getattr(changes, name)
        if value is not None and not set(parts) & set(planned):
            raise InputError(
                f"--llmbench-{name}",
                _words(value),
                f"changes {' and '.join(parts)}, which {where} leaves out (measured: {', '.join(planned)})",
                f"leave it out, or measure {' or '.join(parts)} too",
            )


def changed(card: SetupCard, changes: PlanChanges) -> SetupCard:
    """The card with its plan changed. Raises InputError that names the flags where that plan is impossible.

    Limits on cells that the changed plan lacks are left out.
    """
    flags = changes.to_json()
    if not flags:
        return card
    # As written, without defaults: some fields exclude each other once they are stated.
    data = card.model_dump(mode="json", by_alias=True, exclude_unset=True)
    limits = data.pop("thresholds", {})
    parts = data.setdefault("plan", {})
    for part in PARTS:
        parts.setdefault(part, {})
    if changes.levels is not None:
        parts["concurrency"]["levels"] = list(changes.levels)
    if changes.depths is not None:
        parts["prefill"]["depths"] = parts["context"]["depths"] = list(changes.depths)
    if changes.sizes is not None:
        kept = {name: value for name, value in parts["fit"].items() if name in {"max_tokens", "refine"}}
        parts["fit"] = kept | {"sizes": list(changes.sizes)}
    if changes.probe:
        _probe(card, parts)
    if changes.runs is not None:
        for part in ("decode", "prefill", "context"):
            parts[part]["runs"] = changes.runs
        parts["concurrency"]["rounds"] = changes.runs
    try:
        without = SetupCard.model_validate_json(json.dumps(data))
        known = {spec.id for spec in plan.cells(without)}
        data["thresholds"] = {cell: limit for cell, limit in limits.items() if cell in known}
        return SetupCard.model_validate_json(json.dumps(data))
    except ValidationError as error:
        one = faults_in(SetupCard, error)[0]
        reason = f"{one.field}: {one.reason}"
        given = " ".join(f"{flag}{'' if value is True else f' {_words(value)}'}" for flag, value in flags.items())
        raise InputError(given, None, f"card {card.id} cannot be measured so: {reason}", one.remedy) from None


def _probe(card: SetupCard, parts: dict[str, Any]) -> None:
    for part in ("decode", "prefill", "context"):
        parts[part]["runs"] = 1
    parts["concurrency"]["rounds"] = 1
    parts["decode"]["warmups"] = 0
    for part in PARTS:
        parts[part]["max_tokens"] = min(PROBE_TOKENS, getattr(card.plan, part).max_tokens or PROBE_TOKENS)


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
