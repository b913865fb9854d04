"""gate: t quantiles against scipy's, spreads and references by hand, the machine found in figures that move together."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from pytest_llmbench.gate import Machine, machine_state, sigma0
from pytest_llmbench.gate.spread import degrees, dropped, from_goodness, goodness, reference, spread, usable
from pytest_llmbench.gate.student import t_quantile
from pytest_llmbench.records import Baseline, Direction


@pytest.mark.parametrize(
    ("p", "df", "scipy"),
    [
        (0.975, 1, 12.706204736174694),
        (0.975, 8, 2.306004135204166),
        (0.975, 28, 2.0484071417952454),
        (0.999, 3, 10.214531852407383),
        (1 - 0.01 / 30, 8, 5.373670680897815),
        (1 - 0.01 / 30, 28, 3.827138801219457),
        (0.6, 2.5, 0.2814595127485477),
        (0.995, 1000, 2.580754698065951),
        (0.99999, 17.3, 5.7974957241186855),
        (0.975, 1e7, 1.959964221767205),
        (0.3, 5, -0.5594296444693604),
        (0.5, 4, 0.0),
    ],
)
def test_t_quantiles_are_those_of_scipy(p: float, df: float, scipy: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy, rel=2e-7)


@pytest.mark.parametrize(("p", "df"), [(0.0, 5), (1.0, 5), (0.5, 0), (math.nan, 5), (0.9, math.nan)])
def test_a_quantile_of_nothing_is_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="t quantile of p"):
        t_quantile(p, df)


def test_goodness_turns_latencies_round_and_back() -> None:
    assert goodness(math.e, "higher") == pytest.approx(1)
    assert goodness(math.e, "lower") == pytest.approx(-1)
    assert from_goodness(goodness(812.5, "lower"), "lower") == pytest.approx(812.5)
    # A figure that fell to nothing is far off, and nothing overflows.
    assert goodness(0, "higher") < -600
    assert math.isfinite(from_goodness(1e9, "higher"))


def test_only_positive_numbers_make_a_reference() -> None:
    assert usable([1.0, 0.0, -1.0, math.nan, math.inf, 2.0]) == [1.0, 2.0]


def test_the_reference_leaves_out_a_fifth_on_either_side() -> None:
    assert reference([0, 1, 2, 3, 4, 5, 6, 7, 8, 900]) == pytest.approx((2 + 3 + 4 + 5 + 6 + 7) / 6)
    assert reference([-50, 1, 2, 4, 900]) == pytest.approx(7 / 3)
    assert reference([1, 2, 3, 6]) == 3


@pytest.mark.parametrize(("k", "out", "df"), [(5, 1, 3), (10, 1, 8), (11, 2, 8), (20, 2, 17), (30, 3, 26), (2, 1, 1)])
def test_a_tenth_of_the_sessions_rounded_up_is_left_out(k: int, out: int, df: int) -> None:
    assert (dropped(k), degrees(k)) == (out, df)


def test_the_slowest_session_does_not_make_a_spread() -> None:
    calm = [0.01, 0.0, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, 0.01]
    assert spread([*calm, -0.5]) == pytest.approx(spread([*calm, -0.03]))
    assert spread([*calm, -0.5]) == pytest.approx(statistics.stdev(calm) * 1.1527, rel=1e-3)
    # The fastest does: nothing makes a server faster by accident.
    assert spread([*calm, 0.5]) > 10 * spread([*calm, 0.02])


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [3.0] * 10])
def test_no_spread_is_zero(values: list[float]) -> None:
    assert spread(values) == 0.0


def baseline(*values: float) -> Baseline:
    return Baseline(values, tuple(f"s{at}" for at in range(len(values))))


def test_sigma0_is_the_median_of_the_spreads_of_figures_with_enough_sessions() -> None:
    wide, middle, narrow = (
        baseline(*(100 * math.exp(step * one) for one in (-1, 0, 1, 2, 3, 4, 5))) for step in (0.05, 0.02, 0.01)
    )
    found = sigma0([wide, narrow, middle, baseline(1, 2, 3, 4)], "higher")
    assert found == pytest.approx(spread([0.02 * one for one in (-1, 0, 1, 2, 3, 4, 5)]))
    assert sigma0([wide, narrow, baseline(1, 2, 3, 4)], "higher") is None
    assert sigma0([], "higher") is None
    assert sigma0([baseline(*[7.0] * 6)] * 3, "lower") == 0.0


def histories(
    machine: float, own: float, *, sessions: int, figures: int, seed: int
) -> list[tuple[dict[str, float], Direction]]:
    chance = random.Random(seed)
    moved = [chance.gauss(0, machine) for _ in range(sessions)]
    made: list[tuple[dict[str, float], Direction]] = []
    for at in range(figures):
        direction: Direction = "lower" if at % 3 == 0 else "higher"
        sign = -1 if direction == "lower" else 1
        made.append(
            (
                {f"s{n}": 50 * (at + 1) * math.exp(sign * (m + chance.gauss(0, own))) for n, m in enumerate(moved)},
                direction,
            )
        )
    return made


def test_the_machine_is_what_moves_all_figures_together() -> None:
    found = [machine_state(histories(0.012, 0.01, sessions=20, figures=30, seed=seed)) for seed in range(40)]
    assert all(isinstance(one, Machine) for one in found)
    mean = statistics.fmean(one.sd**2 for one in found if one) ** 0.5
    assert mean == pytest.approx(0.012, rel=0.12)
    assert found[0] is not None
    assert (found[0].sessions, found[0].figures, found[0].df) == (20, 30, 17)


def test_figures_that_vary_each_for_itself_show_no_machine() -> None:
    found = [machine_state(histories(0.0, 0.02, sessions=20, figures=30, seed=seed)) for seed in range(40)]
    assert statistics.fmean(one.sd**2 for one in found if one) ** 0.5 < 0.003


def test_without_enough_figures_or_sessions_the_machine_is_not_known() -> None:
    assert machine_state(histories(0.01, 0.01, sessions=20, figures=4, seed=1)) is None
    assert machine_state(histories(0.01, 0.01, sessions=4, figures=30, seed=1)) is None
    assert machine_state([]) is None


def test_gaps_and_bad_values_of_a_history_are_left_out() -> None:
    full = histories(0.012, 0.002, sessions=12, figures=8, seed=3)
    full[0][0]["s3"] = math.nan
    full[1][0]["s4"] = 0.0
    del full[2][0]["s5"]
    found = machine_state(full)
    assert found is not None
    assert 0.006 < found.sd < 0.02
    still = machine_state([*full, ({"s1": 3.0}, "higher")])
    assert still == found


@pytest.mark.parametrize(("machine", "start"), [(0.012, 0.0), (0.006, 0.010), (0.0, 0.012)])
def test_re_measures_tell_the_machine_from_a_start_that_all_figures_share(machine: float, start: float) -> None:
    chance = random.Random(5)
    sessions = 400
    states = [chance.gauss(0, machine) for _ in range(sessions)]
    shared = [state + chance.gauss(0, start) for state in states]
    series: list[tuple[dict[str, float], Direction]] = []
    again: list[dict[str, list[float]]] = []
    for _ in range(10):
        values = [moved + chance.gauss(0, 0.008) for moved in shared]
        series.append(({f"s{n}": math.exp(-value) for n, value in enumerate(values)}, "lower"))
        # Only suspects are measured again: the picking must not bend what is learned.
        picked = [n for n, value in enumerate(values) if value < -0.015]
        again.append({f"s{n}": [math.exp(-states[n] - chance.gauss(0, 0.012))] for n in picked})
    blind, seeing = machine_state(series), machine_state(series, again)
    assert blind is not None
    assert seeing is not None
    assert blind.sd == pytest.approx(math.hypot(machine, start), rel=0.12)
    assert seeing.sd**2 == pytest.approx(machine**2, abs=0.2 * 0.012**2)
