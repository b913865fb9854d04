"""gate.decide: each step of the rule with numbers worked out by hand, and properties that hold for any numbers."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.errors import InputError
from pytest_llmbench.gate import RULE, WITH_CONTROL, Machine, Rule, chance_to_find, decide
from pytest_llmbench.gate.lines import yardstick
from pytest_llmbench.gate.spread import goodness
from pytest_llmbench.records import Baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.gate import Decision


def baseline(values: Sequence[float], sigma0: float | None = None) -> Baseline:
    return Baseline(tuple(values), tuple(f"s{at}" for at in range(len(values))), sigma0=sigma0)


# Ten equal sessions: the paced server. Every line is a floor.
STEADY = baseline([100.0] * 10, 0.0)
# The same with sigma0 = 2 %: sigma² = 20 · 0.02² / 28, so sigma = 1.690 %, sigma √(1 + 1.1/10) = 1.781 %.
LIVELY = baseline([100.0] * 10, 0.02)


@pytest.mark.parametrize(
    ("value", "again", "kind"),
    [
        (100.0, (), "ok"),
        (98.1, (), "ok"),  # ln = -1.918 %: above the floor of 2 %
        (98.0, (), "measure again"),  # -2.020 %
        (98.0, (98.6,), "ok"),  # -1.410 %: cleared, the floor is 1.5 %
        (98.0, (98.5,), "measure again"),  # -1.511 %
        (98.0, (98.5, 98.5, 98.5, 98.6), "ok"),
        (97.0, (97.0, 97.0, 97.0), "measure again"),
        (97.0, (97.0, 97.0, 97.0, 97.0), "regressed"),  # -3.046 %: the floor is 3 %
        (97.1, (97.1, 97.1, 97.1, 97.1), "ok"),  # -2.943 %
        (90.0, (97.1, 97.1, 97.1, 97.1), "ok"),  # the worst start does not count
        (90.0, (90.0, 97.1, 97.1, 97.1), "regressed"),  # the second worst does: mean -4.84 %
        (103.1, (), "measure again"),
        (103.1, (103.1, 103.1, 103.1, 103.1), "improved"),  # +3.053 %
        (103.1, (103.1, 101.4), "ok"),  # +1.390 %
        (103.0, (103.0, 103.0, 103.0, 103.0), "ok"),  # +2.956 %
    ],
)
def test_floors_hold_where_nothing_varies(value: float, again: tuple[float, ...], kind: str) -> None:
    assert decide(value, again, STEADY, "higher").kind == kind


@pytest.mark.parametrize(
    ("value", "again", "kind"),
    [
        (97.54, (), "ok"),  # suspect line: 1.4 · 1.781 % = 2.493 %, at 97.538
        (97.53, (), "measure again"),
        (97.53, (98.15,), "ok"),  # clearing line: 1.05 · 1.781 % = 1.870 %, at 98.147
        (97.53, (98.14,), "measure again"),
        # line of regressions, 4 starts: machine 3.1 · 1.0451, reference 3.4 · 1.1247, starts 1.9 · 1.1247 sigmas of
        # √0.2 sigma, √0.11 sigma and √(0.8/4) sigma: 3.634 %, at 96.432
        (96.4, (96.43, 96.43, 96.43, 96.43), "regressed"),
        (96.4, (96.44, 96.44, 96.44, 96.44), "ok"),
    ],
)
def test_lines_by_hand_where_sessions_vary(value: float, again: tuple[float, ...], kind: str) -> None:
    assert decide(value, again, LIVELY, "higher").kind == kind


def test_every_number_of_a_decision() -> None:
    found = decide(94.0, (95.0, 96.0, 95.0, 96.0), LIVELY, "higher")
    assert found.kind == "regressed"
    assert (found.k, found.missing, found.df, found.sigma0, found.spread) == (10, 0, 28, 0.02, 0.0)
    assert found.sigma == pytest.approx(0.0169031)
    assert found.machine == pytest.approx(0.0169031 * math.sqrt(0.2), rel=1e-5)
    assert found.reference == pytest.approx(100)
    assert found.estimate == pytest.approx((94 * 95 * 96 * 95 * 96) ** 0.2)
    assert found.change == pytest.approx((94 * 95 * 96 * 95 * 96) ** 0.2 / 100 - 1)
    assert found.best == pytest.approx((95 * 96 * 95 * 96) ** 0.25)
    assert found.interval is not None
    # Half of it: t(28) = 2.0484 times sigma √(0.2 · 1.11 + 0.8 · (1/5 + 0.11)) = 2.3737 %.
    middle = math.fsum(map(math.log, (0.94, 0.95, 0.96, 0.95, 0.96))) / 5
    assert found.interval == pytest.approx((math.expm1(middle - 0.023737), math.expm1(middle + 0.023737)), rel=1e-4)
    assert found.suspect_line == pytest.approx(-math.expm1(-0.0249319), rel=1e-5)
    assert found.clear_line == pytest.approx(-math.expm1(-0.0186989), rel=1e-5)
    assert found.regressed_line == pytest.approx(-math.expm1(-0.0363357), rel=1e-5)
    assert found.resolves is not None
    assert 0.04 < found.resolves < 0.07
    assert (found.clear, found.dip, found.side, found.reason) == (False, False, "worse", None)


@pytest.mark.parametrize(("k", "missing"), [(0, 5), (1, 4), (4, 1)])
def test_without_a_baseline_it_says_how_many_sessions_are_missing(k: int, missing: int) -> None:
    found = decide(50.0, (), baseline([100.0] * k, 0.01), "higher")
    assert (found.kind, found.k, found.missing, found.reference) == ("no baseline", k, missing, None)
    assert decide(50.0, (), None, "higher").missing == 5


@pytest.mark.parametrize(("k", "asked"), [(5, 5), (9, 5), (10, 4), (20, 4)])
def test_a_young_baseline_gets_one_more_start(k: int, asked: int) -> None:
    again: list[float] = []
    while (found := decide(80.0, again, baseline([100.0] * k, 0.0), "higher")).kind == "measure again":
        again.append(80.0)
    assert (found.kind, len(again)) == ("regressed", asked)


def test_the_budget_of_starts_ends_in_inconclusive_or_in_a_wider_line() -> None:
    assert decide(80.0, (), LIVELY, "higher", remeasures_left=0).kind == "inconclusive"
    two = decide(80.0, (80.0, 80.0), LIVELY, "higher", remeasures_left=0)
    assert two.kind == "inconclusive"
    assert two.resolves is not None
    three = decide(80.0, (80.0, 80.0, 80.0), LIVELY, "higher", remeasures_left=0)
    assert three.kind == "regressed"
    # 3 starts: 2.2 sigmas of √(0.8/3): 3.906 %, at 96.169, where 4 would do with 96.432.
    assert decide(96.0, (96.2, 96.2, 96.2), LIVELY, "higher", remeasures_left=0).kind == "ok"
    assert decide(96.0, (96.1, 96.1, 96.1), LIVELY, "higher", remeasures_left=0).kind == "regressed"
    # Good news that nobody may confirm is no warning.
    assert decide(120.0, (), LIVELY, "higher", remeasures_left=0).kind == "ok"
    assert decide(80.0, (100.0,), LIVELY, "higher", remeasures_left=0).kind == "ok"


def test_a_dip_is_a_start_far_off_that_another_clears() -> None:
    # The line of a dip: 3 · 1.781 % = 5.343 %, at 94.798; the floor is 5 %.
    assert decide(94.7, (99.0,), LIVELY, "higher").dip
    assert not decide(94.9, (99.0,), LIVELY, "higher").dip
    assert decide(95.0, (99.0,), STEADY, "higher").dip
    assert not decide(95.2, (99.0,), STEADY, "higher").dip
    assert not decide(110.0, (100.0,), STEADY, "higher").dip


def test_clear_is_of_the_line_that_clears_a_suspect() -> None:
    assert decide(98.6, (), STEADY, "higher").clear is True
    assert decide(98.3, (), STEADY, "higher").clear is False
    assert decide(98.3, (), STEADY, "higher").kind == "ok"
    assert decide(90.0, (99.0,), STEADY, "higher").clear is True
    assert decide(90.0, (90.0,) * 4, STEADY, "higher").clear is False
    assert decide(110.0, (110.0,) * 4, STEADY, "higher").clear is True


# Spread 9.4 %, where figures of its kind vary by 1 %.
NOISY = baseline([100 * math.exp(0.03 * step) for step in (-4, -3, -2, -1, 0, 1, 2, 3, 4, 5)], 0.01)


def test_a_noisy_figure_is_said_and_only_a_collapse_fails() -> None:
    usual = decide(95.0, (), NOISY, "higher")
    assert (usual.kind, usual.noisy, usual.df) == ("noisy", True, 8)
    assert usual.sigma == usual.spread
    assert usual.resolves is not None
    assert usual.resolves > 0.25
    assert decide(85.0, (85.0,) * 4, NOISY, "higher").kind == "noisy"
    assert decide(40.0, (), NOISY, "higher").kind == "measure again"
    assert decide(40.0, (40.0,) * 4, NOISY, "higher").kind == "regressed"
    assert decide(40.0, (100.0,), NOISY, "higher").kind == "noisy"


def test_a_spread_that_the_floors_cover_is_never_noisy() -> None:
    quiet = baseline([100 * math.exp(0.002 * step) for step in range(10)], 0.0001)
    assert decide(100.9, (), quiet, "higher").kind == "ok"


def test_the_machines_term_widens_the_last_line_only() -> None:
    moving = Machine(sd=0.0169, df=8, sessions=10, figures=30)
    still = Machine(sd=0.0, df=8, sessions=10, figures=30)
    wide, usual, narrow = (decide(90.0, (), LIVELY, "higher", machine=one) for one in (moving, None, still))
    assert wide.suspect_line == usual.suspect_line == narrow.suspect_line
    assert wide.clear_line == narrow.clear_line
    lines = [one.regressed_line for one in (narrow, usual, wide)]
    assert all(line is not None for line in lines)
    assert lines == sorted(lines, key=lambda line: line or 0)
    # All of sigma is the machine's: machine 3.1 · 2.3060/1.9600 sigma, reference 3.4 · 1.1247 · √0.11 sigma: 6.52 %.
    assert wide.regressed_line == pytest.approx(-math.expm1(-0.0652), abs=2e-4)
    assert narrow.resolves is not None
    assert wide.resolves is not None
    assert wide.resolves > 1.5 * narrow.resolves
    # More sessions make the same movement surer, and the line closer.
    surer = decide(90.0, (), LIVELY, "higher", machine=replace(moving, df=26))
    assert surer.regressed_line is not None
    assert wide.regressed_line is not None
    assert surer.regressed_line < wide.regressed_line


def test_fewer_figures_share_the_budget_of_alarms() -> None:
    alone = decide(90.0, (), LIVELY, "higher", replace(RULE, figures=1))
    among = decide(90.0, (), LIVELY, "higher")
    assert alone.regressed_line is not None
    assert among.regressed_line is not None
    assert alone.regressed_line < among.regressed_line


def test_sigma0_that_is_not_known_makes_lines_wider() -> None:
    values = [100 * math.exp(0.02 * step) for step in (-2, -1, -1, 0, 0, 0, 0, 1, 1, 2)]
    known = decide(90.0, (), baseline(values, decide(90.0, (), baseline(values), "higher").spread), "higher")
    unknown = decide(90.0, (), baseline(values), "higher")
    assert known.sigma == pytest.approx(unknown.sigma or 0)
    assert (known.df, unknown.df) == (28, 8)
    assert unknown.regressed_line is not None
    assert known.regressed_line is not None
    assert unknown.regressed_line > 1.1 * known.regressed_line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_number_is_inconclusive_with_its_reason(value: float) -> None:
    found = decide(value, (), STEADY, "higher")
    assert found.kind == "inconclusive"
    assert found.reason is not None
    assert str(value) in found.reason


def test_nothing_at_all_is_the_worst_rate_and_the_best_latency() -> None:
    assert decide(0.0, (0.0,) * 4, STEADY, "higher").kind == "regressed"
    assert decide(0.0, (0.0,) * 4, STEADY, "higher").change == pytest.approx(-1)
    assert decide(0.0, (0.0,) * 4, STEADY, "lower").kind == "improved"
    assert decide(0.0, (), STEADY, "higher").kind == "measure again"
    assert decide(0.0, (100.0,), STEADY, "higher").dip


def test_bad_values_among_re_measures_and_baselines_do_not_count() -> None:
    found = decide(90.0, (math.nan, 90.0, math.inf, -3.0), STEADY, "higher")
    assert (found.kind, found.again) == ("measure again", (90.0,))
    few = decide(90.0, (), baseline([0.0, math.nan, 5.0, 5.0, 5.0, 5.0]), "higher")
    assert (few.kind, few.k, few.missing) == ("no baseline", 4, 1)
    assert few.reason == "2 of the baseline's values are not above 0"


def test_counts_and_hair_thin_spreads_are_judged() -> None:
    counts = baseline([4096.0] * 10)
    assert decide(4096, (), counts, "higher").kind == "ok"
    assert decide(2048, (2048,) * 4, counts, "higher").kind == "regressed"
    thin = baseline([100 + 1e-12 * step for step in range(10)], 1e-15)
    assert decide(100.0, (), thin, "higher").kind == "ok"
    assert decide(95.0, (95.0,) * 4, thin, "higher").kind == "regressed"


def test_a_figure_without_a_better_direction_is_never_judged() -> None:
    found = decide(1.0, (1.0,) * 4, STEADY, "none")
    assert (found.kind, found.reference) == ("ok", None)
    assert found.reason == "this figure has no better or worse"


@pytest.mark.parametrize("wrong", [{"remeasures": 2}, {"early_remeasures": 6}, {"figures": 0}])
def test_a_rule_that_no_line_is_known_for_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"rule.{next(iter(wrong))}"):
        Rule(**wrong)


# ---- properties ---------------------------------------------------------------------------------------------------------

_MILD = {"improved": 0, "ok": 1, "noisy": 1, "inconclusive": 2, "measure again": 2, "regressed": 3}


def cases(n: int, seed: int) -> list[tuple[float, tuple[float, ...], Baseline, Machine | None]]:
    chance = random.Random(seed)
    made = []
    for _ in range(n):
        sd = chance.choice([0.0, 0.004, 0.012, 0.03])
        k = chance.choice([5, 7, 10, 10, 14, 20])
        level = 10 ** chance.uniform(-2, 4)
        moved = chance.choice([0, 0, -0.021, -0.031, -0.05, -0.1, 0.04])
        values = [level * math.exp(chance.gauss(0, sd)) for _ in range(k)]
        value, *again = (level * math.exp(moved + chance.gauss(0, sd)) for _ in range(1 + chance.randint(0, 5)))
        sigma0 = chance.choice([None, 0.0, 0.004, 0.012, 0.03])
        machine = chance.choice([None, Machine(chance.choice([0.0, 0.006, 0.02]), chance.choice([3, 8, 26]), 10, 30)])
        made.append((value, tuple(again), baseline(values, sigma0), machine))
    return made


@pytest.mark.parametrize("scale", [1e-6, 7.3, 1e6])
def test_the_unit_does_not_matter(scale: float) -> None:
    for value, again, past, machine in cases(60, 1):
        here = decide(value, again, past, "higher", machine=machine)
        there = decide(
            value * scale,
            [one * scale for one in again],
            replace(past, values=tuple(one * scale for one in past.values)),
            "higher",
            machine=machine,
        )
        assert (here.kind, here.dip, here.clear) == (there.kind, there.dip, there.clear)
        for name in ("change", "sigma", "resolves", "suspect_line", "regressed_line"):
            assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-6, abs=1e-9)


def test_a_latency_is_a_rate_in_the_mirror() -> None:
    for value, again, past, machine in cases(120, 2):
        rate = decide(value, again, past, "higher", machine=machine)
        latency = decide(
            1 / value,
            [1 / one for one in again],
            replace(past, values=tuple(1 / one for one in past.values)),
            "lower",
            machine=machine,
        )
        assert (rate.kind, rate.dip, rate.clear, rate.side) == (latency.kind, latency.dip, latency.clear, latency.side)
        if rate.change is not None:
            assert latency.change is not None
            assert 1 + latency.change == pytest.approx(1 / (1 + rate.change))


def test_a_worse_value_never_gets_a_milder_decision() -> None:
    for value, again, past, machine in cases(60, 3):
        for left in (0, None):
            kinds = [
                _MILD[decide(value * factor, again, past, "higher", remeasures_left=left, machine=machine).kind]
                for factor in (1.2, 1.05, 1.02, 1.0, 0.98, 0.95, 0.9, 0.5, 0.0)
            ]
            # A better value may ask for a start to confirm it, too: that is no verdict.
            worse = kinds[3:] if left is None else kinds
            if decide(value, again, past, "higher", machine=machine).side != "better":
                assert worse == sorted(worse), (value, again, past, machine)


def test_worse_starts_never_get_a_milder_decision() -> None:
    for value, again, past, machine in cases(80, 4):
        for factor in (0.99, 0.9, 0.5):
            here = decide(value, again, past, "higher", remeasures_left=0, machine=machine)
            if here.side == "worse":
                there = decide(
                    value, [one * factor for one in again], past, "higher", remeasures_left=0, machine=machine
                )
                assert _MILD[there.kind] >= _MILD[here.kind]


def test_a_clear_start_always_clears() -> None:
    for value, again, past, machine in cases(120, 5):
        middle = sorted(past.values)[len(past.values) // 2]
        for at, extra in itertools.product(range(len(again) + 1), (1.0, 1.03)):
            starts = [*again[:at], middle * extra, *again[at:]]
            assert decide(min(value, middle), starts, past, "higher", machine=machine).kind != "regressed"


def test_a_decision_holds_finite_numbers_only() -> None:
    def numbers(found: Decision) -> list[float]:
        flat: list[float] = []
        for one in fields(found):
            value = getattr(found, one.name)
            flat += [x for x in (value if isinstance(value, tuple) else [value]) if isinstance(x, float)]
        return flat

    for value, again, past, machine in cases(80, 6):
        for direction in ("higher", "lower"):
            for here in (value, 0.0, 1e300):
                assert all(math.isfinite(x) for x in numbers(decide(here, again, past, direction, machine=machine)))


# ---- what a figure resolves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [RULE, WITH_CONTROL])
@pytest.mark.parametrize("machine", [None, Machine(0.008, 20, 30, 30)])
def test_what_a_figure_resolves_is_found_as_often_as_promised(rule: Rule, machine: Machine | None) -> None:
    chance = random.Random(11)
    stick = yardstick(LIVELY, "higher", rule, machine)
    promised = decide(100.0, (), LIVELY, "higher", rule, machine=machine).resolves
    assert promised is not None
    slow = -math.log1p(-promised)
    assert chance_to_find(slow, stick) == pytest.approx(0.95, abs=0.002)
    found, tries = 0, 6000
    for _ in range(tries):
        # The reference is exact in LIVELY, so its doubt is drawn with what the session shares.
        shared = chance.gauss(0, math.sqrt(stick.machine_variance + stick.doubt * stick.sigma**2))
        starts = [shared - slow + chance.gauss(0, math.sqrt(stick.own_variance)) for _ in range(5)]
        below = starts[0] < -stick.suspect and all(one < -stick.clears for one in starts[1:])
        best = (sum(starts) - min(starts)) / 4
        found += below and best < -stick.regressed(4)
    # At least as often; the bound that the formula takes costs little.
    assert 0.945 <= found / tries <= 0.975


def test_resolves_reads_in_the_figures_own_direction() -> None:
    rate, latency = (decide(100.0, (), LIVELY, direction).resolves for direction in ("higher", "lower"))
    assert rate is not None
    assert latency is not None
    assert goodness(1 - rate, "higher") == pytest.approx(goodness(1 + latency, "lower"), rel=1e-6)
