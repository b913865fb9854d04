"""What is promised before the first request, and what became of it. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pytest_llmbench.records import CellSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_llmbench.records import CellResult, CellStatus, Prompt


@dataclass(frozen=True, slots=True)
class PromisedPrompt:
    """One prompt of a run's first attempt."""

    cell: str
    run: int
    request: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Contract:
    """The promise. cells: promised in this session, in order; left_out: (cell id, why) of the plan's other cells.

    terms: everything else that was fixed beforehand (card, rules, sampling, thresholds, versions, observer settings).
    """

    card: str
    cells: tuple[CellSpec, ...]
    left_out: tuple[tuple[str, str], ...]
    prompts: tuple[PromisedPrompt, ...]
    terms: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The contract as JSON, with the sha256 of the rest under ``sha256``."""
        document: dict[str, Any] = {
            "card": self.card,
            "cells": [cell_to_json(cell) for cell in self.cells],
            "left_out": [{"cell": cell, "why": why} for cell, why in self.left_out],
            "guarded_runs": sum(cell.runs for cell in self.cells),
            "requests": sum(cell.requests for cell in self.cells),
            "prompts": [
                {
                    "cell": p.cell,
                    "run": p.run,
                    "request": p.request,
                    "sha256": p.prompt.sha256,
                    "tokens": p.prompt.tokens,
                    "exact": p.prompt.exact,
                }
                for p in self.prompts
            ],
            **self.terms,
        }
        return document | {"sha256": digest(document)}


def cell_to_json(cell: CellSpec) -> dict[str, Any]:
    """A promised cell as JSON; what does not apply is null."""
    return {
        "id": cell.id,
        "part": cell.part,
        "runs": cell.runs,
        "requests_per_run": cell.requests_per_run,
        "warmups": cell.warmups,
        "prompt_id": cell.prompt_id,
        "prompt_tokens": cell.prompt_tokens,
        "max_tokens": cell.max_tokens,
        "thinking": cell.thinking,
        "ignore_eos": cell.ignore_eos,
        "context": cell.context,
    }


def cell_from_json(data: Mapping[str, Any]) -> CellSpec:
    """The other way round: a promised cell as a contract holds it."""
    return CellSpec(**{field.name: data[field.name] for field in fields(CellSpec)})


def digest(value: Any) -> str:
    """sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def settle(cells: Sequence[CellSpec], results: Iterable[CellResult]) -> dict[str, CellStatus]:
    """The status of each promised cell, in order; a cell without a result is ``missing`` (never silence)."""
    found = {result.spec.id: result.status for result in results}
    return {cell.id: found.get(cell.id, "missing") for cell in cells}
