"""Attempts and results made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_llmbench import stats
from pytest_llmbench.figure_kinds import FigureKind
from pytest_llmbench.records import Attempt, CellResult, CellSpec, Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = FigureKind("decode_tok_s", "tok/s", "higher", "tokens / time")
TTFT = FigureKind("ttft_ms", "ms", "lower", "t_first - t_send")
WORDS = FigureKind("words_s", "words/s", "higher", "words / time", gated=False)
KINDS = (RATE, TTFT, WORDS)
CODE = CellSpec(id="decode[code]", part="decode", runs=2, prompt_id="code", max_tokens=512)


def figure(value: float | None, *reasons: str, kind: FigureKind = RATE, label: str | None = None) -> Figure:
    return Figure(kind.name, kind.unit, value, reasons, label)


def attempt(run: int, *figures: Figure, number: int = 1, cell: str = CODE.id, **more: Any) -> Attempt:
    facts: dict[str, Any] = {
        "cell": cell,
        "run": run,
        "number": number,
        "reason": "first" if number == 1 else "again",
        "server_start": 1,
        "guard": "clean",
        "wall": "2026-01-02T03:04:05.000+00:00",
        "t_start_ns": run * 1000 + number,
        "t_end_ns": run * 1000 + number + 1,
        "request_ids": (f"{cell}/{run}/{number}/0",),
        "figures": figures,
    }
    return Attempt(**{**facts, **more})


def good(run: int, rate: float, ttft: float = 50.0, **more: Any) -> Attempt:
    """An attempt whose figures are all valid."""
    return attempt(run, figure(rate), figure(ttft, kind=TTFT), figure(rate / 2, kind=WORDS), **more)


def result(attempts: Sequence[Attempt], spec: CellSpec = CODE, **more: Any) -> CellResult:
    return stats.conclude(spec, "card", attempts, KINDS, **more)
