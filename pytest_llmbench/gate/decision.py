"""What the rule decided, with every number that a message needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_llmbench.records import ControlSeen, Direction

Kind = Literal[
    "no baseline", "noisy", "ok", "improved", "regressed", "inconclusive", "measure again", "machine changed"
]


@dataclass(frozen=True, slots=True)
class Decision:
    """The rule's answer for one figure.

    value, again: what was judged, in the figure's unit: the session's median, and the medians on fresh servers so far.
    k: baseline sessions that count; missing: how many more before the figure is judged (0 = it is).
    reference, estimate: in the figure's unit; estimate is the geometric mean of value and again.
    change: estimate / reference - 1; interval: its 95 % interval. Both signed as the number moves, not as it is good.
    sigma: the standard deviation of log session medians that was used, with df degrees of freedom; spread: this figure's
    own; sigma0: that of its kind; machine: the part of sigma that fresh starts do not refresh.
    resolves: the smallest worsening that is found in 95 % of sessions, as a share of the reference, once no re-measure
    is spared. suspect_line, clear_line, regressed_line: shares of worsening at which a value is suspect, a re-measure no
    longer clears, and the best of all starts (``best``) is a regression. Positive, and the same for "lower" figures.
    side: "worse" or "better" where the value is suspect or remarkable, None where it is neither.
    dip: suspect far below, and another start cleared it. clear: a start of this session is within the line that clears.
    reason: why there is no number where there could be one.
    control: what the control says of it; then the kind is that of ``gate.combined``, and fails: whether it fails the test.
    "machine changed" comes only from there.
    """

    kind: Kind
    direction: Direction
    value: float
    again: tuple[float, ...] = ()
    k: int = 0
    missing: int = 0
    reference: float | None = None
    estimate: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    sigma: float | None = None
    df: float | None = None
    spread: float | None = None
    sigma0: float | None = None
    machine: float | None = None
    resolves: float | None = None
    suspect_line: float | None = None
    clear_line: float | None = None
    regressed_line: float | None = None
    best: float | None = None
    side: Literal["worse", "better"] | None = None
    noisy: bool = False
    dip: bool = False
    clear: bool | None = None
    reason: str | None = None
    control: ControlSeen | None = None
    fails: bool | None = None
