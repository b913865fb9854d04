"""What it takes to see an effect: the formulas against a simulation of the model that they state."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest

from pytest_llmbench.gate import power
from pytest_llmbench.gate.lines import RULE, WITH_CONTROL
from pytest_llmbench.gate.power import Noise, Option, Rates, option, resolve

SHARED = Noise(0.006, 0.008, 0.015, 0.5, 0.5)


def session_value(rng: random.Random, noise: Noise, machine: float, runs: int) -> float:
    start = rng.gauss(0, noise.start)
    return machine + start + statistics.median(rng.gauss(0, noise.run) for _ in range(runs))


def simulate(design: Option, noise: Noise, effect: float, repeats: int, seed: int) -> float:
    """How often the rule says regressed: with real runs, real medians, a real baseline and an estimated sigma."""
    rng = random.Random(seed)
    k, hits, lines = design.sessions, 0, noise.lines
    line = -math.log1p(-design.line)
    df = power.BORROWED_DF + k - 2
    for _ in range(repeats):
        baseline = sorted(session_value(rng, noise, rng.gauss(0, noise.machine), design.runs) for _ in range(k))
        cut = k // 5
        reference = statistics.fmean(baseline[cut : k - cut])
        ratio = math.sqrt(rng.gammavariate(df / 2, 2) / df)
        around = ratio * noise.sigma(design.runs) * math.sqrt(1 + 1.1 / k)
        suspect = max(-math.log1p(-lines.suspect_floor), lines.suspect_sigmas * around)
        clear = max(-math.log1p(-lines.clear_floor), lines.clear_sigmas * around)
        deep = max(-math.log1p(-lines.regressed_floor), ratio * line)
        machine = rng.gauss(0, noise.machine) + math.log1p(-effect) - reference
        offs = [session_value(rng, noise, machine, design.runs)]
        if offs[0] > -suspect:
            continue
        offs += [session_value(rng, noise, machine, design.again_runs) for _ in range(design.again)]
        best = sorted(offs, reverse=True)[: design.again]
        hits += max(offs[1:]) < -clear and statistics.fmean(best) < -deep
    return hits / repeats


@pytest.mark.parametrize(
    ("effect", "noise", "design"),
    [
        (0.05, SHARED, (3, 3, 5, 10)),
        (0.04, SHARED, (3, 3, 5, 20)),
        (0.03, Noise(0.002, 0.006, 0.008, 0.5, 0.5, "with control", WITH_CONTROL), (3, 4, 5, 10)),
        (0.10, Noise(0.02, 0.01, 0.02, 0.5, 0.5), (5, 3, 5, 20)),
    ],
)
def test_the_power_is_that_of_the_model(effect: float, noise: Noise, design: tuple[int, int, int, int]) -> None:
    found = option(effect, noise, *design, Rates())
    assert simulate(found, noise, effect, 1500, seed=11) == pytest.approx(found.found, abs=0.035)


def test_false_alarms_are_as_rare_as_asked() -> None:
    # A rate that a simulation can count; the default is far rarer.
    narrow = replace(
        RULE, suspect_floor=0.0, suspect_sigmas=0.5, clear_floor=0.0, clear_sigmas=0.3,
        regressed_floor=0.0, machine_sigmas=0.5, reference_sigmas=0.5, start_sigmas=0.5,
    )  # fmt: skip
    noise = Noise(0.012, 0.006, 0.01, 0.5, 0.5, lines=narrow)
    found = option(0.05, noise, 3, 3, 5, 10, Rates(alarm=0.01))
    assert found.false_alarm == pytest.approx(0.01, rel=0.1)
    assert simulate(found, noise, 0.0, 12_000, seed=5) == pytest.approx(0.01, rel=0.35)


def test_the_cheapest_comes_first_and_none_is_worse_in_every_way() -> None:
    answer = resolve(0.05, [SHARED])
    assert answer.options
    minutes = [o.minutes for o in answer.options]
    assert minutes == sorted(minutes)
    assert all(o.found >= 0.95 and o.false_alarm <= 0.01 / 30 * 1.001 for o in answer.options)
    assert answer.why.startswith("5.0% in 95% of sessions")
    rows = power.table(answer)
    assert {len(row) for row in rows} == {9}


def test_a_control_makes_it_possible_where_the_machine_does_not() -> None:
    alone = Noise(0.03, 0.004, 0.006, 0.2, 0.05, "without")
    controlled = Noise(0.001, 0.004, 0.006, 0.4, 0.1, "with control", WITH_CONTROL)
    refused = resolve(0.03, [alone])
    assert refused.options == ()
    assert power.table(refused) == []
    assert refused.why.startswith("not on this machine")
    assert refused.least == pytest.approx(1 - math.exp(-0.03 * (3.403 + 1.645)), abs=0.002)
    answer = resolve(0.03, [alone, controlled])
    assert {o.noise for o in answer.options} == {"with control"}
    assert answer.least is not None
    assert answer.least < 0.01


def test_what_the_rule_cannot_see_is_said_as_such() -> None:
    quiet = Noise(0.0, 0.001, 0.001, 0.5, 0.5)
    assert resolve(0.02, [quiet]).why.startswith("not with this rule")
    loud = Noise(0.0, 0.05, 0.02, 0.5, 0.5)
    assert resolve(0.05, [loud], sessions=(5,)).why.startswith("not within what was tried")
    assert resolve(0.05, [loud], sessions=(5,)).least is None


def test_the_machine_term_is_what_starts_and_runs_do_not_explain() -> None:
    noise = Noise.of(SHARED.sigma(3), 3, start=0.008, run=0.015, start_minutes=1, run_minutes=1)
    assert noise.machine == pytest.approx(0.006)
    assert Noise.of(0.001, 3, start=0.008, run=0.015, start_minutes=1, run_minutes=1).machine == 0.0


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 6, 7, 9, 12])
def test_the_variance_of_a_median(runs: int) -> None:
    rng = random.Random(runs)
    medians = [statistics.median(rng.gauss(0, 1) for _ in range(runs)) for _ in range(2500)]
    assert statistics.pvariance(medians) == pytest.approx(power.median_variance(runs), rel=0.14)


def test_more_starts_and_sessions_never_find_less() -> None:
    found = [option(0.05, SHARED, 3, 3, 5, k, Rates()).found for k in (5, 10, 20, 40)]
    assert found == sorted(found)
    assert option(0.05, SHARED, 5, 3, 5, 10, Rates()).found >= option(0.05, SHARED, 2, 3, 5, 10, Rates()).found - 0.01


@pytest.mark.parametrize(("effect", "sd"), [(0.0, 0.01), (1.0, 0.01), (0.05, -0.01)])
def test_what_cannot_be_is_refused(effect: float, sd: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        resolve(effect, [Noise(sd, 0.01, 0.01, 1, 1)])
    with pytest.raises(ValueError, match="no median"):
        power.median_variance(0)
