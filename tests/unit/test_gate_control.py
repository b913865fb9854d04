"""The control: earned, capped, not wrecked by a disturbance of one side, and never used where it does not pay."""

from __future__ import annotations

import math
import random
import statistics
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.gate import control, robust
from pytest_llmbench.gate.control import Pair, fit
from pytest_llmbench.records import Baseline

if TYPE_CHECKING:
    from collections.abc import Sequence


def sessions(
    n: int,
    *,
    machine: float,
    own: float,
    beta: float = 1.0,
    seed: int = 1,
    hit: Sequence[int] = (),
    hit_control: Sequence[int] = (),
) -> list[Pair]:
    rng = random.Random(seed)
    made = []
    for i in range(n):
        state = rng.gauss(0, machine)
        y = beta * state + rng.gauss(0, own) - 0.15 * (i in hit)
        c = state + rng.gauss(0, own) - 0.15 * (i in hit_control)
        made.append(Pair(100 * math.exp(y), 50 * math.exp(c)))
    return made


def test_the_same_model_takes_the_machine_out() -> None:
    found = fit(sessions(25, machine=0.03, own=0.005), "higher", same=True)
    assert found.pays
    assert found.beta == 1.0
    assert found.raw_sd is not None
    assert found.residual_sd is not None
    assert found.residual_sd < 0.012
    assert found.raw_sd > 0.02
    assert found.why.startswith("control: residual 0.")
    assert "25 sessions" in found.why
    assert statistics.stdev(map(math.log, found.values)) == pytest.approx(found.residual_sd, rel=0.35)


def test_another_model_has_its_beta_from_history() -> None:
    found = fit(sessions(25, machine=0.05, own=0.008, beta=0.47), "higher", same=False)
    assert found.pays
    assert found.beta == pytest.approx(0.45, abs=0.06)
    assert "beta 0.4" in found.why


def test_on_a_quiet_machine_there_is_no_control_and_the_line_says_so() -> None:
    used, betas = 0, []
    for seed in range(60):
        found = fit(sessions(20, machine=0.0, own=0.01, seed=seed), "higher", same=False)
        used += found.pays
        betas.append(found.beta)
    assert used <= 4
    assert statistics.fmean(betas) < 0.1  # unshrunk it would be chance of either sign, as large as 0.35
    alone = fit(sessions(20, machine=0.0, own=0.01), "higher", same=True)
    assert not alone.pays
    assert alone.why.startswith("no control: residual 1.")
    assert "is not below" in alone.why


def test_never_on_a_handful() -> None:
    found = fit(sessions(7, machine=0.05, own=0.001), "higher", same=True)
    assert not found.pays
    assert found.why == "no control: 7 sessions with it, 8 are needed to judge it"
    assert not fit(sessions(9, machine=0.05, own=0.001), "higher", same=False).pays
    # The spread did shrink in these few sessions, and it may well be chance.
    unsure = [fit(sessions(8, machine=0.012, own=0.008, seed=s), "higher", same=True) for s in range(40)]
    lines = [one.why for one in unsure if not one.pays]
    assert any("may be chance" in line for line in lines)


def test_a_disturbance_of_one_side_does_not_wreck_the_fit() -> None:
    pays, betas, widths = 0, [], []
    for seed in range(20):
        clean = fit(sessions(25, machine=0.05, own=0.008, beta=0.5, seed=seed), "higher", same=False)
        hit = fit(
            sessions(25, machine=0.05, own=0.008, beta=0.5, seed=seed, hit=(3, 12), hit_control=(7, 20)),
            "higher",
            same=False,
        )
        assert clean.residual_sd is not None
        assert hit.residual_sd is not None
        pays += hit.pays
        betas.append(hit.beta)
        widths.append(hit.residual_sd / clean.residual_sd)
    assert statistics.fmean(betas) == pytest.approx(0.44, abs=0.06)  # least squares: 0.27
    assert statistics.median(widths) < 1.7
    assert pays >= 10


def test_a_latency_is_judged_by_a_latency_in_the_same_way() -> None:
    rates = sessions(20, machine=0.04, own=0.005)
    times = [Pair(1e4 / p.value, 1e4 / p.control) for p in rates]
    of_rates, of_times = fit(rates, "higher", same=True), fit(times, "lower", same=True)
    assert of_times.residual_sd == pytest.approx(of_rates.residual_sd)
    assert 1e4 / of_times.adjust(120.0, 240.0) == pytest.approx(of_rates.adjust(1e4 / 120, 1e4 / 240))


def test_the_correction_goes_no_further_than_history() -> None:
    found = fit(sessions(25, machine=0.03, own=0.005), "higher", same=True)
    assert found.adjust(90.0, found.center) == pytest.approx(90.0)
    assert found.adjust(90.0, found.center * 0.98) == pytest.approx(90.0 / 0.98)
    far = found.low * 0.7
    assert found.beyond(far)
    assert not found.beyond(found.center)
    assert found.adjust(90.0, far) == found.adjust(90.0, found.low)
    assert found.one_to_one(90.0, far) == pytest.approx(90.0 * found.center / far)


def test_out_of_sample_is_worse_than_in_sample_where_beta_is_chance() -> None:
    history = sessions(12, machine=0.0, own=0.01, seed=5)
    y, c = [math.log(p.value) for p in history], [math.log(p.control) for p in history]
    found = robust.slope(c, y)
    assert found is not None
    in_sample = robust.robust_sd([v - found * w for v, w in zip(y, c, strict=True)])
    result = fit(history, "higher", same=False)
    assert result.residual_sd is not None
    assert result.residual_sd > in_sample


def test_pairs_are_of_the_same_session() -> None:
    figure = Baseline((10.0, 11.0, 12.0), ("a", "b", "c"))
    beside = Baseline((5.0, 6.0), ("c", "a"))
    assert control.pairs(figure, beside) == (Pair(10.0, 6.0, "a"), Pair(12.0, 5.0, "c"))


def test_the_baseline_without_the_machine() -> None:
    history = sessions(20, machine=0.04, own=0.004)
    names = tuple(f"s{i}" for i in range(20))
    figure = Baseline(tuple(p.value for p in history), names, sigma0=0.04)
    beside = Baseline(tuple(p.control for p in history), names)
    found = fit(control.pairs(figure, beside), "higher", same=True)
    without = control.baseline_without_machine(figure, found, 0.006)
    assert without.sigma0 == 0.006
    assert without.sessions == names
    assert statistics.stdev(without.values) < statistics.stdev(figure.values) / 3
    # A pinned baseline of ten of these, and a session without a control.
    pinned = Baseline((*figure.values[3:13], 100.0), (*names[3:13], "alone"))
    assert control.baseline_without_machine(pinned, found, None).values == found.values[3:13]


@pytest.mark.parametrize("bad", [[], [Pair(0.0, 1.0)], [Pair(1.0, math.nan)], [Pair(1.0, math.inf)]])
def test_values_that_cannot_be_are_refused(bad: list[Pair]) -> None:
    with pytest.raises(ValueError, match="positive numbers"):
        fit(bad, "higher", same=True)


@pytest.mark.parametrize(
    ("t", "df", "p"), [(12.706, 1, 0.975), (2.776, 4, 0.975), (-2.776, 4, 0.025), (2.228, 10, 0.975), (1.725, 20, 0.95)]
)
def test_student(t: float, df: int, p: float) -> None:
    assert robust.student_cdf(t, df) == pytest.approx(p, abs=1e-4)


def test_robust_sd_is_the_sd_of_normal_values_and_shrugs_at_wild_ones() -> None:
    rng = random.Random(2)
    for n in (5, 8, 11, 30):
        found = [robust.robust_sd([rng.gauss(0, 2) for _ in range(n)]) for _ in range(400)]
        assert statistics.fmean(found) == pytest.approx(2.0, rel=0.08)
    values = [rng.gauss(0, 1) for _ in range(30)]
    assert robust.robust_sd([*values, 1e6, -1e6, 1e6]) < 1.6 * robust.robust_sd(values)
    assert robust.robust_sd([1.0]) == 0.0
