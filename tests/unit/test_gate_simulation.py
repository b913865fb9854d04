"""benchmarks/gate_simulation.py: its vectorised rule is the package's, its bounds are exact, and its rates hold."""

from __future__ import annotations

import math
from dataclasses import replace

import gate_rules
import gate_simulation as simulation
import numpy as np
import pytest
from scipy import stats

from pytest_llmbench.gate import RULE, WITH_CONTROL, Machine, decide, machine_state, rule
from pytest_llmbench.gate.spread import spread
from pytest_llmbench.records import Baseline, Direction


@pytest.mark.parametrize("k", [5, 7, 9, 10, 13, 20])
def test_the_twin_decides_as_the_package_does(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a figure resolves decides nothing, and takes most of the time.
    monkeypatch.setattr(rule, "resolves", lambda stick, direction: 0.0)
    rng = np.random.default_rng(k)
    seen = set()
    for round_ in range(8):
        sd = rng.choice([0.003, 0.012, 0.03])
        past = sd * rng.standard_normal((10, 8, k)) * rng.choice([1, 1, 1, 4], size=(1, 8, 1))
        moved = rng.choice([0, -0.03, -0.05, -0.1], size=(10, 8))
        first = moved + sd * rng.standard_normal((10, 8))
        again = moved[..., None] + sd * rng.standard_normal((10, 8, 5))
        sigma0 = np.full((10, 1), sd) if round_ % 3 else None
        machine = (np.full((10, 1), sd * 0.6), float(round_ + 2)) if round_ % 2 else None
        constants = WITH_CONTROL if round_ == 5 else replace(RULE, figures=1 + 7 * round_)
        judged = gate_rules.ours(past, first, again, gate_rules.Learned(sigma0, machine), constants)
        for s in range(10):
            for f in range(8):
                direction: Direction = "higher" if (s + f) % 2 else "lower"
                sign = 1 if direction == "higher" else -1
                baseline = Baseline(
                    tuple(100 * np.exp(sign * past[s, f])), (), sigma0=None if sigma0 is None else float(sd)
                )
                learned = None if machine is None else Machine(float(machine[0][s, 0]), machine[1], k, 8)
                starts: list[float] = []
                value = 100 * math.exp(sign * first[s, f])
                while (
                    found := decide(value, starts, baseline, direction, constants, machine=learned)
                ).kind == "measure again":
                    starts.append(100 * math.exp(sign * again[s, f, len(starts)]))
                assert (found.kind == "regressed") == judged.regressed[s, f]
                assert found.noisy == judged.noisy[s, f]
                assert len(starts) == judged.starts[s, f]
                seen.add(found.kind)
    assert {"regressed", "ok", "noisy"} <= seen


@pytest.mark.parametrize("with_fresh", [False, True])
def test_the_twin_learns_the_machine_as_the_package_does(*, with_fresh: bool) -> None:
    rng = np.random.default_rng(3)
    past = 0.01 * rng.standard_normal((6, 1, 24)) + 0.008 * rng.standard_normal((6, 9, 24))
    fresh = 0.01 * rng.standard_normal((6, 9, 24))
    made = (past - past.mean(axis=-1, keepdims=True)) < -0.012
    made[..., :5] = False
    # Some of the six have enough sessions with re-measures, some have not.
    assert len({bool(one.any(axis=0).sum() >= 10) for one in made}) == 2
    sd, df = gate_rules.machine_sd(past, fresh if with_fresh else None, suspect=0.012)
    for one in range(6):
        found = machine_state(
            [({f"s{n}": math.exp(x) for n, x in enumerate(figure)}, "higher") for figure in past[one]],
            [
                {f"s{n}": [math.exp(fresh[one, f, n])] for n in np.flatnonzero(made[one, f])} if with_fresh else {}
                for f in range(9)
            ],
        )
        assert found is not None
        assert found.sd == pytest.approx(sd[one, 0], rel=1e-9)
        assert found.df == df


@pytest.mark.parametrize("k", [5, 7, 10, 11, 15, 20, 25, 40])
def test_a_spread_estimates_that_of_undisturbed_sessions_within_a_percent(k: int) -> None:
    values = np.random.default_rng(k).standard_normal((100_000, k))
    found = gate_rules.spread(values)
    assert math.sqrt((found**2).mean()) == pytest.approx(1, abs=0.01)
    assert found[:20] == pytest.approx([spread(list(one)) for one in values[:20]])


def test_bounds_are_exact_and_two_sided() -> None:
    assert simulation.clopper_pearson(0, 30)[1] == pytest.approx(0.1157, abs=1e-4)
    low, high = simulation.clopper_pearson(20, 20)
    assert low == pytest.approx(0.8316, abs=1e-4)
    assert high == 1.0
    assert simulation.rate(1, 200) == "0.50 (0.01 … 2.75)"


def test_medians_from_the_table_are_medians_of_runs() -> None:
    world = simulation.World()
    drawn = simulation.Sampler(world, np.random.default_rng(1)).medians((200_000,), 3)
    gamma = np.random.default_rng(2).standard_gamma(4, size=(200_000, 3))
    runs = np.median(-(gamma - 4) / 2 * world.run, axis=1)
    for share in (0.001, 0.05, 0.5, 0.95, 0.999):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(runs, share), abs=4e-4)
    # The long tail is slow.
    assert stats.skew(simulation.Sampler(world, np.random.default_rng(1)).medians((100_000,), 1)) < -0.9


def test_what_the_world_assumes_is_in_what_it_draws() -> None:
    world = simulation.World(machine=0.02, start=0.001, run=0.001, disturbed=0.0)
    past, first, again, state = simulation.Sampler(world, np.random.default_rng(4)).draw(500)
    assert np.corrcoef(state[:, 0, 3], past[:, 0, 3])[0, 1] > 0.99
    assert (past.shape, first.shape, again.shape) == ((500, 30, 10), (500, 30), (500, 30, 5))
    assert first.mean(axis=1).std() == pytest.approx(0.02, rel=0.1)
    # A fresh start stays on the session's machine.
    assert np.corrcoef(first[:, 0], again[:, 0, 4])[0, 1] > 0.99
    assert abs(np.corrcoef(first[:, 0], past[:, 0, 0])[0, 1]) < 0.2


@pytest.mark.parametrize(
    ("world", "alarms", "finds_5"),
    [
        (simulation.World(shared=False), 0.01, 0.93),
        (simulation.World(sessions=20, shared=False), 0.01, 0.95),
        (simulation.World(machine=0.012, history=10), 0.015, 0.40),
        (replace(simulation.VM, learned=False, history=10), 0.02, 0.03),
    ],
)
def test_rates_hold(world: simulation.World, alarms: float, finds_5: float) -> None:
    found = simulation.simulate(world, {"ours": simulation.ours()}, 3000, seed=9)["ours"]
    assert found.sessions == 3000
    assert found.alarms / found.sessions <= alarms
    assert found.found[0] < found.found[1] < found.found[2]
    assert found.found[1] / found.sessions >= finds_5
    assert found.starts / found.sessions < 14


def test_others_are_what_their_names_say() -> None:
    base = np.log(np.full((1, 1, 10, 3), 100.0)) + np.linspace(-0.004, 0.004, 30).reshape(1, 1, 10, 3)
    for drop, five, three, welch in [(0.0, False, False, False), (0.04, False, True, True), (0.06, True, True, True)]:
        today = base[..., 4, :] + math.log(1 - drop)
        assert bool(gate_rules.fixed(0.05)(base, today)) == five
        assert bool(gate_rules.fixed(0.03)(base, today)) == three
        assert bool(gate_rules.sigmas(base, today)) == three
        assert bool(gate_rules.welch(base, today)) == welch
        assert bool(gate_rules.mann_whitney(base, today)) == welch
        assert bool(gate_rules.bootstrap(np.random.default_rng(1), 100)(base, today)) == three
    assert bool(gate_rules.last_session(0.05)(base, base[..., 9, :] + math.log(0.94)))


def test_exact_mann_whitney_is_scipys() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        base, today = rng.standard_normal((1, 4, 3)), rng.standard_normal((1, 3)) - 2.5
        p = stats.mannwhitneyu(today[0], base.ravel(), alternative="less", method="exact").pvalue
        assert bool(gate_rules.mann_whitney(base, today)) == (p < 0.01 / 30) or abs(p - 0.01 / 30) < 1e-9
        chances = np.cumsum(gate_rules._u_distribution(3, 12))
        u = int((today[0][:, None] > base.ravel()).sum())
        assert chances[u] == pytest.approx(p)


def test_the_table_has_a_row_for_every_rule() -> None:
    rows = list(simulation.table(1000, 1, "with a control, K = 20"))
    assert len(rows) == 3
    columns = {line.count("|") for row in rows for line in row.splitlines()}
    assert columns == {8}
    assert all("with a control, K = 20" in row for row in rows[1:])
