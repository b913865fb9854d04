"""What llama-server logs of each request, and of its drafting. Pure; see log.py."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TASK = re.compile(r"\bid +(?P<slot>\d+) \| task (?P<task>\d+) \|")
_TASK_KEYS = re.compile(r"\bid_slot=(?P<slot>\d+) id_task=(?P<task>\d+)")
_PROMPT = re.compile(r"prompt eval time += +(?P<ms>[\d.]+) ms / +(?P<n>\d+) tokens")
_EVAL = re.compile(r"(?<!prompt )\beval time += +(?P<ms>[\d.]+) ms / +(?P<n>\d+) (?:tokens|runs)")
_NEW_PROMPT = re.compile(r"new prompt, .*?n_ctx_slot = \d+.*?(?:task\.n_tokens|n_prompt_tokens) = (?P<n>\d+)")
_CACHED = (
    re.compile(r"\bcached n_tokens = (?P<n>\d+)"),
    re.compile(r"\b(?:n_tokens|n_past) = (?P<n>\d+), memory_seq_rm \["),
    re.compile(r"\bkv cache rm \[(?P<n>\d+), end\)"),
    re.compile(r"\bkv cache rm \[p0, end\).*\bp0=(?P<n>\d+)"),
)
_DRAFT = re.compile(
    r"draft acceptance(?: rate)? = [\d.]+ \( *(?P<accepted>\d+) accepted / +(?P<generated>\d+) generated\)"
)
_MEAN_LENGTH = re.compile(r"\bmean (?:len|acceptance length) += +(?P<length>[\d.]+)")
_PER_POSITION = re.compile(r"\b(?:acc per pos|acceptance rate per position) += +\((?P<rates>[\d., ]*)\)")
_STATISTICS = re.compile(
    r"statistics +(?P<kind>[\w-]+): #calls(?:\(b,g,a\))? += +(?P<calls>[\d ]+), #gen drafts += +(?P<drafts>\d+), "
    r"#acc drafts += +(?P<accepted_drafts>\d+), #gen tokens += +(?P<generated>\d+), #acc tokens += +(?P<accepted>\d+)"
)
_STATISTICS_LENGTH = re.compile(r"#mean acc len += +(?P<length>[\d.]+)")
_STATISTICS_RATES = re.compile(r"#acc rate/pos += +\((?P<rates>[\d., ]*)\)")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as the server logged it. None: not in the log.

    prompt_tokens: as asked; prompt_n: of them evaluated; cached_tokens: of them taken from the cache.
    mean_accepted_length: tokens a draft step yields, the model's own included (1 + accepted / steps).
    """

    slot: int
    task: int
    prompt_tokens: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    cached_tokens: int | None = None
    draft_generated: int | None = None
    draft_accepted: int | None = None
    mean_accepted_length: float | None = None
    accepted_per_position: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """All drafting of one kind since the start (the last such line). steps: drafts that were made and verified."""

    kind: str
    calls: tuple[int, ...]
    steps: int
    accepted_steps: int
    generated: int
    accepted: int
    mean_accepted_length: float | None
    accepted_per_position: tuple[float, ...] | None


def requests(lines: Iterable[str]) -> tuple[LoggedRequest, ...]:
    """Requests in the order in which the log first names them; tasks of which it says nothing are left out."""
    found: dict[tuple[int, int], LoggedRequest] = {}
    key: tuple[int, int] | None = None  # older builds print the timings on lines of their own after the slot's
    for line in lines:
        if match := _TASK.search(line) or _TASK_KEYS.search(line):
            key = int(match["slot"]), int(match["task"])
        if key is None:
            continue
        known = found.get(key, LoggedRequest(*key))
        new = _with(known, line)
        if new != known:
            found[key] = new
    return tuple(found.values())


def _with(known: LoggedRequest, line: str) -> LoggedRequest:
    if match := _PROMPT.search(line):
        return replace(known, prompt_n=int(match["n"]), prompt_ms=float(match["ms"]))
    if match := _EVAL.search(line):
        return replace(known, predicted_n=int(match["n"]), predicted_ms=float(match["ms"]))
    if match := _NEW_PROMPT.search(line):
        return replace(known, prompt_tokens=int(match["n"]))
    if (
        known.cached_tokens is None and known.prompt_n is None
    ):  # the first one: later ones count what was just evaluated
        for pattern in _CACHED:
            if match := pattern.search(line):
                return replace(known, cached_tokens=int(match["n"]))
    new = known
    if match := _DRAFT.search(line):
        new = replace(new, draft_generated=int(match["generated"]), draft_accepted=int(match["accepted"]))
        if match := _MEAN_LENGTH.search(line):
            new = replace(new, mean_accepted_length=float(match["length"]))
    if match := _PER_POSITION.search(line):
        new = replace(new, accepted_per_position=_rates(match["rates"]))
    return new


def drafts(lines: Iterable[str]) -> tuple[DraftStatistics, ...]:
    """The drafting statistics by kind: each line counts from the start, so the last of a kind holds."""
    found: dict[str, DraftStatistics] = {}
    for line in lines:
        if match := _STATISTICS.search(line):
            length, rates = _STATISTICS_LENGTH.search(line), _STATISTICS_RATES.search(line)
            found[match["kind"]] = DraftStatistics(
                kind=match["kind"],
                calls=tuple(map(int, match["calls"].split())),
                steps=int(match["drafts"]),
                accepted_steps=int(match["accepted_drafts"]),
                generated=int(match["generated"]),
                accepted=int(match["accepted"]),
                mean_accepted_length=float(length["length"]) if length else None,
                accepted_per_position=_rates(rates["rates"]) if rates else None,
            )
    return tuple(found.values())


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(",") if word.strip())
