"""What the rooms pass on: frozen records without behaviour of their own. Imports nothing of ours.

Times named ``t_…_ns`` are ``time.monotonic_ns()`` (CLOCK_MONOTONIC, shared by all processes of a machine);
``wall`` strings are ISO 8601 UTC and only label. ``None`` is "unknown" or "not there", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CellStatus = Literal["measured", "disturbed", "invalid", "failed", "unsupported", "missing"]
VerdictKind = Literal[
    "ok",
    "improved",
    "below target",
    "below floor",
    "regressed",
    "inconclusive",
    "no baseline",
    "noisy",
    "machine changed",
    "equivalent",
]
Direction = Literal["higher", "lower", "none"]


# ---- the client's record of one request ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One HTTP request as the transport saw it; nothing in it is parsed.

    chunks: (arrival, raw body bytes) in order of arrival, HTTP framing removed, SSE framing still in.
    t_call_ns: the caller asked; t_send_ns: just before the first byte was handed to the socket. Their difference is
    time spent inside the client (waiting for a connection included) and belongs to no latency.
    transport_error: the failure that ended the exchange (``ReadError: …``), or None.
    """

    request_id: str
    path: str
    body: bytes
    wall: str
    t_call_ns: int
    t_send_ns: int | None
    t_headers_ns: int | None
    t_end_ns: int
    status: int | None
    headers: tuple[tuple[str, str], ...]
    chunks: tuple[tuple[int, bytes], ...]
    transport_error: str | None = None


@dataclass(frozen=True, slots=True)
class ServerTimings:
    """The server's own account of a request (llama-server ``timings``). Counts in tokens, times in ms."""

    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    cache_n: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


@dataclass(frozen=True, slots=True)
class TextEvent:
    """One event that carries generated text. predicted_n: tokens generated so far, where the server says so."""

    t_ns: int
    content: str = ""
    reasoning: str = ""
    tool_call: str = ""
    predicted_n: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a RequestTrace says once parsed.

    ended: the stream came to its proper end (``[DONE]``, or the endpoint's equivalent).
    error: an HTTP error, an error event inside the stream, or the transport's error.
    """

    events: tuple[TextEvent, ...]
    content: str
    reasoning: str
    tool_calls: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    timings: ServerTimings | None
    finish_reason: str | None
    model: str | None
    ended: bool
    error: str | None


# ---- what is promised ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CellSpec:
    """One promised cell (METHOD: "cell").

    id: stable, the baseline's key (``decode[code]``, ``prefill[8192]``, ``ctx[32768-prose]``).
    prompt_tokens: exact size as the server counts it, or None where the text is taken as it is.
    max_tokens: the answer's limit, or None for no limit of ours.
    """

    id: str
    part: str
    runs: int
    requests_per_run: int = 1
    warmups: int = 0
    prompt_id: str | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    thinking: bool = False
    ignore_eos: bool = False
    context: int | None = None

    @property
    def requests(self) -> int:
        return self.warmups + self.runs * self.requests_per_run


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to send. tokens: as the server counts it in the chat endpoint, template included."""

    text: str
    sha256: str
    tokens: int | None
    exact: bool
    nonce: str


# ---- what became of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of one quantity in one attempt. reasons: why it is not valid (empty = valid). label: how it was read."""

    name: str
    unit: str
    value: float | None
    reasons: tuple[str, ...] = ()
    label: str | None = None

    @property
    def valid(self) -> bool:
        return self.value is not None and not self.reasons


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run done once (METHOD: "attempt"). number counts from 1 within its run; reason says why it was made.

    again: 0 for the session's own runs; n for those of the nth fresh server on which a suspect cell was measured again.
    """

    cell: str
    run: int
    number: int
    reason: str
    server_start: int
    guard: str
    wall: str
    t_start_ns: int
    t_end_ns: int
    request_ids: tuple[str, ...]
    figures: tuple[Figure, ...]
    error: str | None = None
    examined_for_cache: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    again: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """A cell's figure over its runs: the median of the valid values, one a promised run.

    values: the valid value of each run, in run order. cv: sample standard deviation / mean, None under two values.
    reasons: why the figure is not measured (empty = measured).
    """

    name: str
    unit: str
    direction: Direction
    median: float | None
    values: tuple[float, ...]
    promised_runs: int
    cv: float | None
    reasons: tuple[str, ...] = ()
    label: str | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell after its runs: every attempt, the summaries of its figures, and its status."""

    spec: CellSpec
    card: str
    status: CellStatus
    attempts: tuple[Attempt, ...]
    summaries: tuple[Summary, ...]
    reasons: tuple[str, ...] = ()
    raw_file: str | None = None
    server_logs: tuple[str, ...] = ()

    def summary(self, name: str) -> Summary:
        """The summary of one figure. Raises KeyError that lists the figures there are."""
        for one in self.summaries:
            if one.name == name:
                return one
        raise KeyError(f"{self.spec.id} has no figure {name!r}; it has {', '.join(s.name for s in self.summaries)}")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one figure of one cell is compared with: the medians of earlier sessions, oldest first (GATE: "Baselines").

    values: in the figure's unit, one a session. since, until: ISO 8601 of the first and the last of them. pinned: complete,
    so that later sessions do not move it. sigma0: the typical standard deviation of log session medians of figures of this
    kind on this machine, None while nothing is known. accepted: the reason, where a person started it anew.
    """

    values: tuple[float, ...]
    sessions: tuple[str, ...]
    since: str = ""
    until: str = ""
    pinned: bool = False
    sigma0: float | None = None
    accepted: str | None = None


@dataclass(frozen=True, slots=True)
class ControlSeen:
    """What the control says beside one figure. figure: the control's own that it is held against.

    median: the control's over the runs that count, again: on each fresh server of the setup; in the control's unit. key: which
    control on which build. used: the verdict is of the figure without the machine. why: why it is used, or is not. beta, raw,
    residual: how much of the control's change is taken out, and the spread (sd of logs) without and with it, out of
    sample. sessions: that have both. change: of the control against its own baseline, a share; word: what the rule says of
    it. resolves_without: what the figure would resolve without it. said: what it makes of the verdict, in words.
    """

    figure: str
    median: float | None
    key: str
    again: tuple[float, ...] = ()
    used: bool = False
    why: str = ""
    beta: float | None = None
    raw: float | None = None
    residual: float | None = None
    sessions: int = 0
    change: float | None = None
    word: str | None = None
    resolves_without: float | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a figure's number says (METHOD: "verdict"). lines: the explanation, most important first.

    reference, change (share of the reference; negative = the number is smaller) and interval (95 %, of the change) are of
    the baseline, or of the missed threshold. resolves: the smallest worsening, as a share, that this figure can show here and
    now. sigma: the standard deviation of log session medians that was used. again: the medians on fresh servers. dip: it
    was suspect, and another start cleared it. clear: within the line that clears a suspect. control: what the control says of it.
    """

    cell: str
    figure: str
    kind: VerdictKind
    failed: bool
    lines: tuple[str, ...]
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    resolves: float | None = None
    sigma: float | None = None
    again: tuple[float, ...] = ()
    dip: bool = False
    clear: bool | None = None
    control: ControlSeen | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure of one cell in one earlier session, as the history keeps it; what marks are proposed from.

    usable: complete, valid and not disturbed. values: the session's own runs. crashed: an attempt broke off and a later
    one was valid. control: the median of the control's figure beside it; control_key: of which control. The rest as in ``Verdict``.
    """

    session: str
    started: str
    usable: bool
    disturbed: bool
    crashed: bool
    verdict: VerdictKind | None
    value: float | None
    values: tuple[float, ...] = ()
    reference: float | None = None
    change: float | None = None
    sigma: float | None = None
    dip: bool = False
    clear: bool | None = None
    control: float | None = None
    control_key: str | None = None
