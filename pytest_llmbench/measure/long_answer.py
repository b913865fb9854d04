"""``long_answer``: one long task that must end by itself; wall time, tokens, and the text kept (METHOD, "Speed")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.measure.part import (
    CHARS,
    DECODE,
    NOTHING_KNOWN,
    SERVER_DECODE,
    TOKENS,
    TTFT,
    WALL,
    WORDS,
    RunFacts,
    RunReading,
    Sent,
    SharedServer,
    details_of,
    read_kinds,
)
from pytest_llmbench.measure.validity import judge_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import Answer, CellSpec


@dataclass(frozen=True)
class LongAnswer(SharedServer):
    """One request without a limit of ours; an answer that was cut off is no answer."""

    name: str = "long_answer"
    kinds: tuple[FigureKind, ...] = (WALL, DECODE, TOKENS, replace(TTFT, gated=False), WORDS, CHARS, SERVER_DECODE)
    headline: str = "wall_s"
    keeps_text: bool = True

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts = NOTHING_KNOWN) -> RunReading:
        (one,) = sent
        reasons = judge_request(spec, one.trace, one.answer, bounds, prompt_tokens=one.prompt_tokens)
        reasons = replace(reasons, every=(*reasons.every, *_cut_off(spec, one.answer, facts)))
        words = {"words": len(one.answer.content.split()), "characters": len(one.answer.content)}
        return RunReading(read_kinds(self.kinds, one, reasons), details_of(one) | words)


def _cut_off(spec: CellSpec, answer: Answer, facts: RunFacts) -> list[str]:
    """Why the answer did not end by itself."""
    if answer.error or answer.finish_reason in {None, "stop"}:
        return []
    count = answer.completion_tokens
    if answer.finish_reason == "length" and spec.max_tokens is not None and count == spec.max_tokens:
        why = f"the card's limit of {spec.max_tokens} tokens was reached"
    elif answer.finish_reason == "length" and _full(answer, facts):
        why = f"the context of {facts.context} tokens was full"
    else:
        why = "the server cut it off"
    return [f"the answer did not end by itself: {why} after {count} tokens (finish reason {answer.finish_reason})"]


def _full(answer: Answer, facts: RunFacts) -> bool:
    used = (answer.prompt_tokens or 0) + (answer.completion_tokens or 0)
    return facts.context is not None and used >= facts.context - 1


PART = LongAnswer()
