"""``fit``: does a context of N tokens fit, shown by a cold prompt that fills 95 % of it (METHOD, "Memory test")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.figure_kinds import FigureKind
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.part import (
    NO_VALUE,
    NOTHING_KNOWN,
    TTFT,
    RunFacts,
    RunReading,
    Sent,
    details_of,
)
from pytest_llmbench.measure.validity import judge_request
from pytest_llmbench.records import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import CellSpec

LOAD = FigureKind("load_s", "s", "lower", "from the server's start to its first 200 on /health")
PREFILL = FigureKind("prefill_tok_s", "tok/s", "higher", "as the server reports it: prompt_n / prompt_ms")
DECODE = FigureKind(
    "decode_tok_s", "tok/s", "higher", "as the server reports it: (predicted_n - 1) / predicted_ms", required=False
)
MEMORY = FigureKind(
    "peak_memory_mib",
    "MiB",
    "lower",
    "most memory of the measured device(s) in use from start to answer",
    required=False,
)
FILLED = FigureKind("share_filled", "of 1", "none", "prompt tokens / tokens that one request may use", gated=False)
PROMPT = FigureKind("prompt_tokens", "tokens", "none", "prompt tokens as the server counts them", gated=False)


@dataclass(frozen=True)
class Fit:
    """One cold request on a server that was started with the size in place of the card's context."""

    name: str = "fit"
    kinds: tuple[FigureKind, ...] = (LOAD, PREFILL, TTFT, DECODE, MEMORY, FILLED, PROMPT)
    headline: str = "prefill_tok_s"
    cold: bool = True
    keeps_text: bool = False

    def changes(self, spec: CellSpec) -> tuple[tuple[str, str], ...]:
        assert spec.context is not None
        return (("-c", str(spec.context)),)

    def sized(self, spec: CellSpec, context: int | None) -> CellSpec:
        """floor(0.95 N) prompt tokens of the N that one request may use."""
        return spec if context is None else replace(spec, prompt_tokens=context * 95 // 100)

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts = NOTHING_KNOWN) -> RunReading:
        (one,) = sent
        answer, tokens = one.answer, one.answer.prompt_tokens
        reasons = judge_request(spec, one.trace, answer, bounds, prompt_tokens=one.prompt_tokens)
        shared = reasons.every  # its answer is short on purpose: the rules of decode do not apply
        filled = tokens / facts.context if tokens is not None and facts.context else None
        values: dict[str, tuple[float | None, tuple[str, ...]]] = {
            "load_s": (facts.load_s, ()),
            "prefill_tok_s": (fig.server_prefill_tok_s(answer.timings), shared),
            "ttft_ms": (fig.ttft_ms(answer, one.trace.t_send_ns), shared + reasons.ttft),
            "decode_tok_s": (fig.server_decode_tok_s(answer.timings), shared),
            "peak_memory_mib": (facts.peak_memory_mib, ()),
            "share_filled": (filled, shared),
            "prompt_tokens": (tokens, shared),
        }
        figures = []
        for kind in self.kinds:
            value, why = values[kind.name]
            if value is None and not why and kind.gated:
                why = (facts.memory_reason or "nobody watched the memory",) if kind is MEMORY else (NO_VALUE,)
            label = facts.memory_source if kind is MEMORY else capped(facts)
            figures.append(Figure(kind.name, kind.unit, value, why, label))
        sizes = {"context": facts.context, "context_asked": facts.context_asked, "slots": facts.slots}
        return RunReading(tuple(figures), details_of(one) | sizes)


def capped(facts: RunFacts) -> str | None:
    """Words for a server that silently took less than it was asked for; None where it did not."""
    if facts.context is None or facts.context_asked is None or facts.context >= facts.context_asked:
        return None
    return f"the server gives one request {facts.context} tokens, {facts.context_asked} were asked for"


PART = Fit()
