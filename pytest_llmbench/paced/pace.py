"""Every knob of the paced server in one frozen record; the defaults are an ideal llama-server."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pytest_llmbench.errors import InputError

# Knobs of the process; all others may be set for single requests.
PROCESS_KNOBS = frozenset({
    "load_s", "start_log", "start_exit", "start_signal", "start_slow_every", "start_slow_factor", "start_cv",
    "counter_file", "truth_log", "requests", "exit_after_requests", "speed_by_request", "props", "hang_on_sigterm",
    "term_wait_s", "keep_alive_s", "keep_alive_max", "loop", "n_ctx_train", "add_bos",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """How a paced server behaves. Times in ms unless the name says otherwise, rates in tokens per second.

    Token k (from 0) of a request leaves at ``slot + ttft_ms + processed prompt tokens / prefill_tok_s + k / tok_s``;
    ``slot`` is when a slot was free for the fully received request. ``…_after: n`` happens once n tokens are out
    (0: in place of the first token). ``requests`` maps a request number (from 1; ``"3"``, ``"2-4"``, ``"5-"``,
    ``"%10"`` = every tenth) to knobs that hold for those requests only; later rules win.
    """

    # ---- timing
    ttft_ms: float = 20.0
    prefill_tok_s: float | None = None
    tok_s: float = 50.0
    speed: float = 1.0
    speed_by_request: tuple[float, ...] = ()  # factor of request i; the last one holds for all that follow
    speed_cv: float = 0.0  # each request's speed is drawn from a normal distribution of this CV
    jitter_ms: float = 0.0  # each token up to this late, never adding up
    seed: int = 0
    # ---- how tokens become chunks
    tokens_per_chunk: int = 1
    first_chunk_tokens: int | None = None
    burst_tokens: int = 1  # tokens that leave together, each in its own chunk (speculative decoding)
    silent_every: int = 0  # each k-th token gives no chunk of its own; its text comes with the next
    early_role: bool = False
    ping_every_ms: float = 0.0
    events_per_write: int = 1
    split_bytes: int = 0  # each write in TCP pieces of this size
    split_gap_ms: float = 0.5
    framing: Literal["chunked", "close"] = "chunked"
    # ---- the answer
    answer: str | None = None  # this text, then the end of text
    stop_after: int | None = None  # end of text as token n, unless ignore_eos is asked and honoured
    truncate_after: int | None = None  # context full: finish "length" before the limit
    reasoning_tokens: int = 0
    tool_call_from: int | None = None  # from this token (from 0) on a tool call's arguments
    honours_thinking_off: bool = True
    honours_ignore_eos: bool = True
    # ---- what is reported
    prompt_cache: bool = True  # as the real one: what a slot still holds is not processed again
    cache_n: int | None = None  # this many prompt tokens from a cache, whatever was asked
    prompt_count_error: int = 0
    usage: bool = True
    timings: bool = True
    timings_per_token: bool = True
    timings_extra: dict[str, Any] = field(default_factory=dict)
    finish: bool = True
    done: bool = True
    # ---- faults of one request
    http_error: int | None = None
    error_after: int | None = None
    error_all_after: int | None = None  # kills all streams in flight (shared cache overflow)
    drop_after: int | None = None
    end_after: int | None = None
    hang_after: int | None = None
    exit_after_tokens: int | None = None
    exit_code: int = 1
    exit_signal: str | None = None
    # ---- the process
    exit_after_requests: int | None = None
    load_s: float = 0.0
    start_log: str = ""
    start_exit: int | None = None
    start_signal: str | None = None
    counter_file: str | None = None  # counts process starts
    start_slow_every: int = 0
    start_slow_factor: float = 2.0
    start_cv: float = 0.0
    hang_on_sigterm: bool = False
    term_wait_s: float = 30.0  # the real one's wait when a stream is open
    keep_alive_s: float = 5.0
    keep_alive_max: int = 100
    n_ctx_train: int = 131072
    add_bos: bool = True
    props: dict[str, Any] = field(default_factory=dict)  # merged over /props
    loop: Literal["asyncio", "uvloop"] = "asyncio"
    truth_log: str | None = None
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, hint in _hints().items():
            _check(name, getattr(self, name), hint)
        for name in ("ttft_ms", "jitter_ms", "speed_cv", "start_cv", "load_s", "ping_every_ms", "split_gap_ms"):
            if getattr(self, name) < 0:
                raise InputError(f"paced.{name}", getattr(self, name), "is below zero", "use 0 or more")
        for name in ("tok_s", "speed", "tokens_per_chunk", "burst_tokens", "events_per_write", "start_slow_factor"):
            if getattr(self, name) <= 0:
                raise InputError(f"paced.{name}", getattr(self, name), "must be above zero", "use 1, or any above 0")
        if self.prefill_tok_s is not None and self.prefill_tok_s <= 0:
            raise InputError("paced.prefill_tok_s", self.prefill_tok_s, "must be above zero", "leave it out for none")
        if (self.start_slow_every or self.start_cv) and not self.counter_file:
            raise InputError("paced.counter_file", None, "is needed to tell one start from the next", "name a file")
        for rule, knobs in self.requests.items():
            _parse_rule(rule)
            for name in knobs:
                _known(name, f"paced.requests[{rule!r}]")
                if name in PROCESS_KNOBS:
                    raise InputError(
                        f"paced.requests[{rule!r}].{name}", knobs[name], "holds for the process, not for one request",
                        "set it beside 'requests'",
                    )  # fmt: skip
            dataclasses.replace(self, requests={}, **_coerced(knobs))

    def for_request(self, number: int) -> Pace:
        """What holds for one request, numbered from 1 in order of arrival."""
        knobs: dict[str, Any] = {}
        for rule, values in self.requests.items():
            if _matches(rule, number):
                knobs.update(values)
        return dataclasses.replace(self, requests={}, **_coerced(knobs)) if knobs else self

    def to_json(self) -> str:
        """The knobs that differ from the defaults, as a JSON object."""
        default = {f.name: _default(f) for f in dataclasses.fields(self)}
        return json.dumps({k: v for k, v in dataclasses.asdict(self).items() if v != default[k]})

    @classmethod
    def from_json(cls, text: str, where: str = "paced") -> Pace:
        """A Pace from a JSON object. Raises InputError that names the key, and the nearest known one."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(where, text, f"is not JSON ({error})", 'write an object, {"tok_s": 50}') from error
        if not isinstance(data, dict):
            raise InputError(where, text, "is not a JSON object", 'write an object, {"tok_s": 50}')
        for name in data:
            _known(name, where)
        return cls(**_coerced(data))


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Pace)


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default if one.default is not dataclasses.MISSING else {}


def _coerced(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if k == "speed_by_request" and isinstance(v, list) else v for k, v in data.items()}


def _known(name: str, where: str) -> None:
    names = [f.name for f in dataclasses.fields(Pace)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)
        raise InputError(f"{where}.{name}", None, "unknown key", hint)


def _check(name: str, value: Any, hint: Any) -> None:
    if _fits(value, hint):
        return
    raise InputError(f"paced.{name}", value, f"is a {type(value).__name__}", f"needs {_name(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, float) for one in value)
    if origin is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(one) for one in get_args(hint))
    return getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)


def _parse_rule(rule: str) -> tuple[int, int | None, int]:
    """(first, last, step) of a rule."""
    found = re.fullmatch(r"%([1-9]\d*)|([1-9]\d*)(?:(-)(\d*))?", rule)
    if found is None:
        raise InputError(
            "paced.requests", rule, "is not a request number", 'write "3", "2-4", "5-" or "%10" (counted from 1)'
        )
    step, first, dash, last = found.groups()
    if step:
        return int(step), None, int(step)
    if not dash:
        return int(first), int(first), 1
    return int(first), int(last) if last else None, 1


def _matches(rule: str, number: int) -> bool:
    first, last, step = _parse_rule(rule)
    return number >= first and (last is None or number <= last) and (number - first) % step == 0
