"""What a part is, and the parts whose run is one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_llmbench.figure_kinds import FigureKind, PartFigures
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.validity import Bounds, Reasons, judge_request
from pytest_llmbench.records import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_llmbench.records import Answer, CellSpec, RequestTrace


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a run: what was sent, what came back, and what the prompt must count."""

    trace: RequestTrace
    answer: Answer
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class RunReading:
    """What one run says. details: what is worth keeping beside the figures (finish reasons, windows)."""

    figures: tuple[Figure, ...]
    details: dict[str, Any] = field(default_factory=dict)


class Part(PartFigures, Protocol):
    """A part of the protocol: the figures it yields, and how to read a run."""

    @property
    def name(self) -> str: ...

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds) -> RunReading:
        """Turn one run's requests into figures. Pure: raw files are read again by the same code."""
        ...


_Needs = Literal["every", "decode", "ttft"]
_Value = tuple[float | None, str | None]

DECODE = FigureKind("decode_tok_s", "tok/s", "higher", "tokens after the first chunk / (t_last - t_first)")
TTFT = FigureKind("ttft_ms", "ms", "lower", "t_first - t_send")
PREFILL = FigureKind("prefill_tok_s", "tok/s", "higher", "prompt tokens / TTFT of the same request")
WORDS = FigureKind("words_s", "words/s", "higher", "words after the first chunk / (t_last - t_first)", gated=False)
CHARS = FigureKind(
    "characters_s", "chars/s", "higher", "characters after the first chunk / (t_last - t_first)", gated=False
)
SERVER_DECODE = FigureKind(
    "server_decode_tok_s", "tok/s", "higher", "the server's timings: (predicted_n - 1) / predicted_ms", gated=False
)
SERVER_PREFILL = FigureKind(
    "server_prefill_tok_s", "tok/s", "higher", "the server's timings: prompt_n / prompt_ms", gated=False
)

_READERS: dict[str, tuple[_Needs, Callable[[Sent], _Value]]] = {
    "decode_tok_s": ("decode", lambda s: fig.decode_tok_s(s.answer)),
    "ttft_ms": ("ttft", lambda s: (fig.ttft_ms(s.answer, s.trace.t_send_ns), None)),
    "prefill_tok_s": ("ttft", lambda s: (fig.prefill_tok_s(s.answer, s.trace.t_send_ns), None)),
    "words_s": ("decode", lambda s: (fig.words_s(s.answer), None)),
    "characters_s": ("decode", lambda s: (fig.characters_s(s.answer), None)),
    "server_decode_tok_s": ("every", lambda s: (fig.server_decode_tok_s(s.answer.timings), None)),
    "server_prefill_tok_s": ("every", lambda s: (fig.server_prefill_tok_s(s.answer.timings), None)),
}


@dataclass(frozen=True, slots=True)
class SingleRequestPart:
    """A part whose run is one request."""

    name: str
    kinds: tuple[FigureKind, ...]
    headline: str

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds) -> RunReading:
        (one,) = sent
        reasons = judge_request(spec, one.trace, one.answer, bounds, prompt_tokens=one.prompt_tokens)
        answer = one.answer
        return RunReading(
            tuple(_figure(kind, one, reasons) for kind in self.kinds),
            {
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "cached_tokens": answer.cached_tokens,
                "finish_reason": answer.finish_reason,
                "windows_tok_s": [round(rate, 3) for rate in fig.windows_tok_s(answer)],
                "client_wait_ms": None
                if one.trace.t_send_ns is None
                else (one.trace.t_send_ns - one.trace.t_call_ns) / 1e6,
            },
        )


def _figure(kind: FigureKind, one: Sent, reasons: Reasons) -> Figure:
    needs, reader = _READERS[kind.name]
    value, label = reader(one)
    why = reasons.every
    if needs == "decode":
        why += reasons.decode
    elif needs == "ttft":
        why += reasons.ttft
    if value is None and not why and kind.gated:
        why = ("the server's answer does not hold what this figure is computed from",)
    return Figure(kind.name, kind.unit, value, why, label)
