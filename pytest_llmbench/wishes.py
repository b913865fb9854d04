"""What the caller of a run wants beside the card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.resume import Continue
    from pytest_llmbench.slowdown import Slowdown


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare with: a saved name, and by how much a figure may be worse (shares; per figure, and otherwise)."""

    name: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.10


@dataclass(frozen=True, slots=True)
class Gating:
    """How a run is judged by earlier ones.

    history: a database's URL or a file; None: neither remembered nor judged by. baseline_file: baselines of a file in place of
    the history's. remeasure: most fresh servers per suspect cell, None: as many as the rule asks for. accept: the reason
    why this session starts new baselines. marks: the reviewed file, where there is one.
    """

    history: str | None = None
    baseline_file: Path | None = None
    remeasure: int | None = None
    require_baseline: bool = False
    strict: bool = False
    accept: str | None = None
    marks: Path | None = None


@dataclass(frozen=True, slots=True)
class ControlWish:
    """The control to run beside a setup. resident: its server stays up beside the setup's."""

    card: SetupCard
    resident: bool = True


@dataclass(frozen=True, slots=True)
class Against:
    """What to measure in turns with the card (--llmbench-against): the old card, and how the comparison ends.

    margin: changes within it are no matter (0.02 = 2 %). pairs: the most pairs of starts. budget_s: no new pair where it
    would end later than so many seconds after the first began; None: no such limit.
    """

    card: SetupCard
    margin: float
    pairs: int
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants of a run beside the card. canary: a slowdown to plant; the run is labelled and kept apart."""

    storage: Path
    compare: Comparison | None = None
    save: tuple[str, ...] = ()
    json: Path | None = None
    model: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 600.0
    silence_timeout_s: float = 1800.0
    plan_changes: Mapping[str, Any] = field(default_factory=dict)
    probe: bool = False
    go_on: Continue | None = None
    gating: Gating = Gating()
    canary: Slowdown | None = None
    control: ControlWish | None = None
    against: Against | None = None
