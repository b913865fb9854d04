"""The form of a report document. ``document`` fills it in."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_llmbench.records import CellStatus, Direction, VerdictKind  # noqa: TC001 - pydantic reads them


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ControlFigure(_Model):
    """What the control says beside one figure (docs/control.md)."""

    figure: str = Field(description="the control's own figure that it is held against")
    median: float | None = Field(description="of the control, beside the runs that count")
    again: tuple[float, ...] = Field(description="the same on each fresh server of the setup")
    key: str = Field(description="which control on which build")
    used: bool = Field(description="the verdict is of the figure without the machine")
    why: str = Field(description="why it is used, or is not")
    beta: float | None = Field(description="how much of the control's change is taken out")
    raw: float | None = Field(description="spread of sessions (sd of logs) without the control, out of sample")
    residual: float | None = Field(description="the same with it")
    sessions: int = Field(description="that have both")
    change: float | None = Field(description="of the control against its own baseline, a share")
    word: str | None = Field(description="what the rule says of the control")
    resolves_without: float | None = Field(description="what the figure would resolve without the control")
    said: str


class ControlEntry(_Model):
    """The control in this session."""

    card: str
    role: Literal["judges", "trial", "rests"]
    why: str
    turns: int
    minutes: float = Field(description="spent on its turns and its servers")
    lost: str | None = Field(description="why it was given up in the middle of the session")
    report: str | None = Field(description="its own report, relative to this file")
    verdict: VerdictKind | None = Field(description="of the machine, once a session, by the control's own level")
    failed: bool
    said: str | None
    changes: dict[str, float | None] = Field(description="of the control's own figures against their baselines")


class PairEntry(_Model):
    """A start of the old and one of the new setup, next to each other."""

    number: int
    first: Literal["old", "new"]
    old: float | None = Field(description="median of the start's runs; null: not every promised run was valid")
    new: float | None
    old_runs: tuple[float, ...]
    new_runs: tuple[float, ...]
    old_starts: tuple[int, ...] = Field(description="server starts, as numbered in the old side's folder")
    new_starts: tuple[int, ...]
    dropped: str | None = Field(description="why the pair does not count; null: it does")


class ComparedEntry(_Model):
    """What a direct comparison says of one figure. ratio and interval are of new / old."""

    outcome: Literal["regressed", "improved", "equivalent", "inconclusive"]
    pairs: tuple[PairEntry, ...]
    counted: int = Field(description="the verdict stands on the first so many pairs that were not dropped")
    ratio: float | None
    interval: tuple[float | None, float | None] = Field(
        description="right at every moment, over all figures; null: no pair has bounded that end"
    )
    margin: float = Field(description="changes within it are no matter, a share")
    could_have_seen: float | None = Field(
        description="the smallest worsening, a share, that these pairs would have shown in 8 of 10 comparisons"
    )


class FigureEntry(_Model):
    """One figure of one cell. median is null unless every promised run is valid; values hold the valid runs."""

    name: str
    unit: str
    direction: Direction
    definition: str
    median: float | None
    values: tuple[float, ...]
    promised_runs: int
    cv: float | None = Field(description="sample standard deviation / mean over the runs")
    reasons: tuple[str, ...] = Field(description="why the figure is not measured; empty when it is")
    label: str | None = Field(description="how it was counted, where the server gave less than the definition asks for")
    verdict: VerdictKind | None
    reference: float | None
    change: float | None = Field(description="median / reference - 1")
    interval: tuple[float, float] | None = Field(default=None, description="95 % interval of the change")
    resolves: float | None = Field(
        default=None, description="the smallest worsening, as a share, that this figure can show here and now"
    )
    sigma: float | None = Field(
        default=None, description="standard deviation of log session medians that the gate reckoned with"
    )
    again: tuple[float, ...] = Field(
        default=(), description="medians on the fresh servers on which the cell was measured again, in order"
    )
    dip: bool = Field(default=False, description="it was suspect, and a fresh server cleared it")
    clear: bool | None = Field(default=None, description="within the line that clears a suspect")
    control: ControlFigure | None = Field(default=None, description="null: no control ran beside it")
    explanation: tuple[str, ...]
    compared: ComparedEntry | None = Field(
        default=None, description="the pairs of a direct comparison (--llmbench-against), of the new card's figures"
    )


class CellEntry(_Model):
    """One promised cell and what became of it. Paths are relative to this file."""

    id: str
    part: str
    status: CellStatus
    reasons: tuple[str, ...]
    promised: dict[str, Any]
    headline: str | None = Field(
        default=None,
        description="the name of the figure that speaks for the cell; null for a part that this version cannot measure",
    )
    figures: tuple[FigureEntry, ...]
    attempts: tuple[dict[str, Any], ...]
    requests_examined_for_cache: int
    requests_with_cached_tokens: int
    sessions: tuple[str, ...] = Field(
        default=(), description="the sessions that made the attempts; more than one after a resume"
    )
    replaced: dict[str, Any] | None = Field(
        default=None,
        description="an earlier valid result that this one stands in for (a supplement); the earlier run keeps it",
    )
    notes: tuple[str, ...] = Field(default=(), description="what a reader must know beside the figures")
    raw_file: str | None
    server_logs: tuple[str, ...]


class Headline(_Model):
    """The headline figures (METHOD): means of the decode cells' medians, and the largest context that answered."""

    decode_tok_s: float | None
    words_s: float | None
    characters_s: float | None
    seconds_for_500_words: float | None
    decode_spread_cv: float | None
    fit_largest: int | None = Field(
        default=None, description="tokens of -c: the largest size of the memory test that answered"
    )


class Document(_Model):
    """The report of one run of one card."""

    llmbench_report: Literal[1]
    tool: str
    session: str
    started: str
    finished: str
    complete: bool = Field(description="every promised cell is measured, or not possible on this machine (unsupported)")
    probe: bool = Field(default=False, description="a trial run: never a measurement, never compared with or saved")
    history: bool = Field(
        default=True, description="the session belongs into a history; false with --llmbench-no-history"
    )
    canary: dict[str, Any] | None = Field(
        default=None,
        description="the slowdown that was planted in this session on purpose; it is kept apart from all others",
    )
    last_canary: str | None = Field(
        default=None, description="when a planted slowdown was last caught here; null without a baseline that judges"
    )
    plan_changes: dict[str, Any] = Field(
        default_factory=dict, description="what the command line changed in the card's plan, by flag"
    )
    continues: dict[str, Any] | None = Field(
        default=None, description="the earlier run that this one resumes or supplements, why, and what was taken over"
    )
    against: dict[str, Any] | None = Field(
        default=None,
        description="a direct comparison (--llmbench-against): this side's role, the other card, what differs, how far it came; such "
        "a run never enters a baseline",
    )
    card: dict[str, Any]
    contract: dict[str, Any]
    environment: dict[str, Any]
    headline: Headline
    cells: tuple[CellEntry, ...]
    searched: tuple[CellEntry, ...] = Field(
        default=(),
        description="sizes that the memory test tried between the last that answered and the first that failed",
    )
    control: ControlEntry | None = Field(default=None, description="null: none was asked for")
    problems: tuple[str, ...] = Field(description="what kept the run from starting or ending as promised")
