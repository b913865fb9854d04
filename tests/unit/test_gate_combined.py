"""Setup or machine: every case of the table, and the decisions behind it with a rule given in."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.gate.combined import KINDS, Final, Kind, combine, judge, of_control
from pytest_llmbench.gate.control import Pair, fit
from pytest_llmbench.records import Baseline

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("raw", "adjusted", "control", "one_to_one", "kind", "failed"),
    [
        ("no baseline", None, None, None, "no baseline", False),
        ("ok", None, None, None, "ok", False),
        ("regressed", None, None, None, "regressed", True),
        ("regressed", "regressed", "ok", None, "regressed", True),
        ("regressed", "regressed", "regressed", None, "regressed", True),
        ("regressed", "regressed", "regressed", "regressed", "regressed", True),
        ("regressed", "regressed", "regressed", "ok", "machine changed", True),
        ("regressed", "regressed", "regressed", "measure again", "measure again", False),
        ("regressed", "ok", "regressed", None, "machine changed", True),
        ("regressed", "improved", "regressed", None, "machine changed", True),
        ("regressed", "ok", "ok", None, "inconclusive", False),
        ("regressed", "ok", "measure again", None, "measure again", False),
        ("measure again", "ok", "ok", None, "ok", False),
        ("measure again", "ok", "regressed", None, "machine changed", True),
        ("ok", "regressed", "ok", None, "regressed", True),
        ("ok", "regressed", "improved", None, "regressed", True),
        ("ok", "measure again", "ok", None, "measure again", False),
        ("ok", "ok", "regressed", None, "ok", False),
        ("ok", "improved", "ok", None, "improved", False),
        ("noisy", "ok", "ok", None, "ok", False),
        ("noisy", "regressed", "ok", None, "regressed", True),
        ("improved", "ok", "improved", None, "machine changed", False),
        ("improved", "improved", "improved", None, "improved", False),
        ("regressed", None, "ok", None, "regressed", True),
        ("regressed", None, "regressed", "ok", "machine changed", True),
        ("regressed", None, "regressed", "regressed", "regressed", True),
    ],
)
def test_cases(
    raw: Kind, adjusted: Kind | None, control: Kind | None, one_to_one: Kind | None, kind: str, failed: object
) -> None:
    found = combine(raw, adjusted, control, one_to_one)
    assert (found.kind, found.failed) == (kind, failed)


def test_what_holds_in_every_case() -> None:
    optional: tuple[Kind | None, ...] = (None, *KINDS)
    for raw, adjusted, control, one in itertools.product(KINDS, optional, optional, (None, "regressed", "ok")):
        final = combine(raw, adjusted, control, one)  # type: ignore[arg-type]
        if raw == "no baseline":
            assert final == Final("no baseline", failed=False)
            continue
        # A slowdown of both is never silently divided away.
        if raw == "regressed" and control == "regressed":
            assert final.failed or final.kind == "measure again"
        # Seen by the sharper instrument, it is said, whatever the control, unless it fell beyond what is known.
        if adjusted == "regressed" and not (control == "regressed" and one == "ok"):
            assert final.kind == "regressed"
        # Nothing of the figure's own fell: no failure of the figure.
        if raw not in ("regressed", "inconclusive", "measure again") and adjusted != "regressed":
            assert not final.failed
        if raw == "regressed":
            assert final.kind not in ("ok", "improved", "noisy")
        # Without a control, it is the rule's own word.
        if adjusted is None and control is None:
            assert final.kind == raw
        if final.failed:
            assert final.kind in ("regressed", "machine changed")


def test_the_control_is_a_verdict_of_its_own() -> None:
    assert of_control("regressed") == Final(
        "machine changed", failed=True, why="the control fell: the machine got slower"
    )
    assert of_control("improved").kind == "machine changed"
    assert not of_control("improved").failed
    assert of_control("ok").kind == "ok"


def test_the_reasons_tell_the_setup_from_the_machine() -> None:
    assert combine("ok", "regressed", "improved").why.startswith("the machine hid it")
    assert combine("regressed", "regressed", "ok").why.startswith("not the machine")
    assert "does not explain all" in combine("regressed", "regressed", "regressed", "regressed").why
    assert combine("regressed", "regressed", "regressed", "ok").why.startswith("the control fell further than history")


# ---- with a rule ----


@dataclass(frozen=True)
class Said:
    kind: str


def decide(value: float, again: Sequence[float], baseline: Baseline | None) -> Said:
    """A rule as small as can be: 3 sd or 3 % below the median of the baseline, in all starts."""
    if baseline is None:
        return Said("no baseline")
    logs = [math.log(v) for v in baseline.values]
    line = statistics.median(logs) - max(0.03, 3 * statistics.stdev(logs))
    if math.log(value) > line:
        return Said("ok")
    return Said("regressed" if all(math.log(v) <= line for v in again) else "ok")


WAVE = [math.sin(i * 2.4) for i in range(20)]
OWN = [math.cos(i * 1.1) for i in range(20)]
HISTORY = [
    Pair(100 * math.exp(0.03 * wave + 0.003 * own), 50 * math.exp(0.03 * wave - 0.003 * own))
    for wave, own in zip(WAVE, OWN, strict=True)
]
FIT = fit(HISTORY, "higher", same=True)
FIGURE = Baseline(tuple(p.value for p in HISTORY), tuple(map(str, range(20))))
CONTROL = Baseline(tuple(p.control for p in HISTORY), tuple(map(str, range(20))))
WITHOUT = Baseline(FIT.values, tuple(map(str, range(20))))


@pytest.mark.parametrize(
    ("value", "control", "kind"),
    [
        (99.0, 50.0, "ok"),
        (95.0, 50.0, "regressed"),  # 5 %: the raw spread of 2 % hides it, the control shows it
        (98.0, 51.4, "regressed"),  # the machine hid it
        (97.0, 48.6, "ok"),  # the machine within what is known
        (80.0, 40.0, "machine changed"),  # a hog on both
        (80.0, 49.9, "regressed"),
        (70.0, 40.0, "regressed"),  # a hog on both, and the setup 12 % slower
    ],
)
def test_a_session(value: float, control: float, kind: str) -> None:
    assert FIT.pays
    found = judge(Pair(value, control), [Pair(value, control)] * 2, FIT, FIGURE, WITHOUT, CONTROL, decide)
    assert found.final.kind == kind, found


def test_without_a_control_that_pays_the_machine_is_still_told_apart() -> None:
    handful = fit(HISTORY[:5], "higher", same=True)
    assert not handful.pays
    slower = judge(Pair(80.0, 40.0), [], handful, FIGURE, None, CONTROL, decide)
    assert (slower.final.kind, slower.adjusted) == ("machine changed", None)
    alone = judge(Pair(80.0, 50.0), [], handful, FIGURE, None, CONTROL, decide)
    assert alone.final.kind == "regressed"


def test_a_kind_that_no_rule_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="'fine' is no kind of the rule"):
        judge(Pair(1.0, 1.0), [], FIT, FIGURE, None, CONTROL, lambda *_: Said("fine"))
