"""False alarms and power of the gate's rule, beside what others do, in simulated sessions whose truth is known.

    nice python benchmarks/gate_simulation.py [--quick] [--sessions 12000] [--seed 5] [--only WORD]

A false alarm is an unchanged session in which at least one figure is called regressed. Power is the share of sessions in
which a slowdown of one figure is found (another figure in every session, so that sessions count once). Every rate has its exact
95 % Clopper-Pearson bounds. Everything that is assumed is printed. Needs the extra ``bench`` (numpy, scipy).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

try:
    import numpy as np
    from scipy import stats
except ImportError as error:
    sys.exit(f"{error}: the simulation needs numpy and scipy: pip install 'pytest-llmbench[bench]'")

import gate_rules
from gate_rules import Judged, Learned

from pytest_llmbench.gate import RULE, WITH_CONTROL, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gate_rules import Bools, Floats

EFFECTS = (0.03, 0.05, 0.10)
CHUNK = 1000
_TABLE = 1 << 17


@dataclass(frozen=True)
class World:
    """What is assumed of a machine; shares of 1 are standard deviations of log values.

    A session's value of a figure = machine (one draw a session, not refreshed by a fresh start) + start (one draw a server
    start) + median of the runs (gamma, skewness 1, the long tail slow) + a disturbance of ``depth`` that hits ``disturbed`` of the
    starts and that the guard misses in 1 - guard of them.
    shared: the machine's draw is the same for all figures of a session, as it is in truth; else one a figure.
    start_shared: the first start too, as when one server serves all cells. tails: degrees of freedom of a start's t, None = normal.
    today: factor on starts and runs of the judged session only: the machine became noisy and nobody knows.
    learned: sigma0 is learned from the other figures. history: sessions that the machine's movement is learned from (0: not
    learned), with the re-measures of suspects from the sixth on. The first ``sessions`` of them are the baseline.
    """

    figures: int = 30
    sessions: int = 10
    machine: float = 0.006
    shared: bool = True
    start: float = 0.008
    start_shared: bool = False
    tails: int | None = None
    run: float = 0.015
    runs: int = 3
    again_runs: int = 5
    disturbed: float = 0.02
    depth: float = 0.10
    guard: float = 0.90
    today: float = 1.0
    learned: bool = True
    history: int = 0

    def differs(self) -> str:
        """What is not as in the default world."""
        here, usual = vars(self), vars(World())
        return ", ".join(
            f"{name} {here[name]:g}" if isinstance(here[name], float) else f"{name} {here[name]}"
            for name in here
            if here[name] != usual[name]
        )


@dataclass
class Sampler:
    """Draws sessions of a world; medians of runs by one look into a table of their distribution."""

    world: World
    rng: np.random.Generator
    _tables: dict[int, Floats] = field(default_factory=dict)

    def medians(self, shape: tuple[int, ...], runs: int) -> Floats:
        if runs not in self._tables:
            at = (np.arange(_TABLE) + 0.5) / _TABLE
            middle = (runs + 1) // 2
            uniform = stats.beta.ppf(at, middle, runs + 1 - middle) if runs > 1 else at
            self._tables[runs] = -(stats.gamma.ppf(uniform, 4) - 4) / 2 * self.world.run
        return np.asarray(self._tables[runs][self.rng.integers(_TABLE, size=shape)])

    def starts(self, shape: tuple[int, ...]) -> Floats:
        tails = self.world.tails
        if tails is None:
            return self.world.start * self.rng.standard_normal(shape)
        return self.world.start * self.rng.standard_t(tails, size=shape) / math.sqrt(tails / (tails - 2))

    def disturbances(self, shape: tuple[int, ...]) -> Floats:
        unseen = self.world.disturbed * (1 - self.world.guard)
        return np.where(self.rng.random(shape) < unseen, math.log(1 - self.world.depth), 0.0)

    def draw(self, n: int) -> tuple[Floats, Floats, Floats, Floats]:
        """(past, first, again, machine): logs of n histories, the judged session's values and fresh starts, past machine states."""
        w = self.world
        past = max(w.sessions, w.history)
        machine = w.machine * self.rng.standard_normal((n, 1 if w.shared else w.figures, past + 1))
        start = self.starts((n, 1 if w.start_shared else w.figures, past + 1))
        own = start + self.medians((n, w.figures, past + 1), w.runs)
        own[..., past] *= w.today
        values = machine + own + self.disturbances(own.shape)
        again_shape = (n, w.figures, 5)
        fresh = w.today * (self.starts(again_shape) + self.medians(again_shape, w.again_runs))
        again = machine[..., past:] + fresh + self.disturbances(again_shape)
        return values[..., :past], values[..., past], again, machine[..., :past]

    def draw_past_fresh(self, past_machine: Floats) -> Floats:
        """A fresh start of every figure in every past session, of which the suspects' are what a history holds."""
        shape = (past_machine.shape[0], self.world.figures, past_machine.shape[2])
        return past_machine + self.starts(shape) + self.medians(shape, self.world.again_runs) + self.disturbances(shape)

    def draw_runs(self, n: int) -> tuple[Floats, Floats]:
        """(base runs, today's runs) where a rule looks at single runs; the same world."""
        w = self.world
        shape = (n, w.figures, w.sessions + 1, w.runs)
        machine = w.machine * self.rng.standard_normal((n, 1 if w.shared else w.figures, w.sessions + 1, 1))
        start = self.starts((n, w.figures, w.sessions + 1, 1))
        values = machine + start + self.medians(shape, 1) + self.disturbances(shape[:-1])[..., None]
        return values[..., :-1, :], values[..., -1, :]


@dataclass
class Tally:
    """Counts over simulated sessions."""

    sessions: int = 0
    alarms: int = 0
    found: list[int] = field(default_factory=lambda: [0] * len(EFFECTS))
    noisy: float = 0.0
    starts: float = 0.0

    def row(self, world: str, rule: str) -> str:
        finds = " / ".join(f"{100 * one / self.sessions:.1f}" for one in self.found)
        noisy, starts = (
            (f"{100 * self.noisy / self.sessions:.1f}", f"{self.starts / self.sessions:.1f}")
            if self.starts
            else ("", "")
        )
        return (
            f"| {world} | {rule} | {rate(self.alarms, self.sessions)} | {finds} | {bounds(self.found[1], self.sessions)} "
            f"| {noisy} | {starts} |"
        )


HEADER = (
    "| world | rule | suite false alarm % (95 % bounds) | finds 3 / 5 / 10 % | bounds at 5 % | noisy % | fresh starts a session |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def clopper_pearson(hits: int, n: int) -> tuple[float, float]:
    """Exact 95 % bounds of a rate."""
    low = float(stats.beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def rate(hits: int, n: int) -> str:
    return f"{100 * hits / n:.2f} ({bounds(hits, n)})"


def bounds(hits: int, n: int) -> str:
    low, high = clopper_pearson(hits, n)
    return f"{100 * low:.2f} … {100 * high:.2f}"


def one_figure_each(array: Floats, offset: int) -> Floats:
    """Keep one figure a session, another in each, with the figures' axis kept."""
    n, figures = array.shape[:2]
    return np.asarray(array[np.arange(n), (np.arange(n) + offset) % figures][:, None])


def simulate(world: World, rules: dict[str, Callable[..., Judged]], sessions: int, seed: int) -> dict[str, Tally]:
    """Rules that re-measure, on the same sessions. A rule: (base, first, again, learned) → Judged."""
    sampler = Sampler(world, np.random.default_rng(seed))
    tallies = {name: Tally() for name in rules}
    for offset in range(0, sessions, CHUNK):
        past, first, again, state = sampler.draw(CHUNK)
        fresh = sampler.draw_past_fresh(state)[..., : world.history] if world.history else None
        base = past[..., : world.sessions]
        learned = Learned(
            np.median(gate_rules.spread(base), axis=1, keepdims=True) if world.learned and world.figures >= 3 else None,
            gate_rules.machine_sd(past[..., : world.history], fresh) if world.history else None,
        )
        picked = [one_figure_each(array, offset) for array in (base, first, again)]
        for name, rule in rules.items():
            tally, judged = tallies[name], rule(base, first, again, learned)
            tally.sessions += CHUNK
            tally.alarms += int(judged.regressed.any(axis=1).sum())
            tally.noisy += float(judged.noisy.mean(axis=1).sum())
            tally.starts += float(judged.starts.sum())
            for at, effect in enumerate(EFFECTS):
                slow = math.log(1 - effect)
                found = rule(picked[0], picked[1] + slow, picked[2] + slow, learned).regressed
                tally.found[at] += int(found.sum())
    return tallies


def simulate_others(
    world: World, rules: dict[str, Callable[[Floats, Floats], Bools]], sessions: int, seed: int
) -> dict[str, Tally]:
    """Rules that look at single runs and never measure again."""
    sampler = Sampler(world, np.random.default_rng(seed))
    tallies = {name: Tally() for name in rules}
    for offset in range(0, sessions, CHUNK // 4):
        base, today = sampler.draw_runs(CHUNK // 4)
        base_one, today_one = one_figure_each(base, offset), one_figure_each(today, offset)
        for name, rule in rules.items():
            tally = tallies[name]
            tally.sessions += CHUNK // 4
            tally.alarms += int(rule(base, today).any(axis=1).sum())
            for at, effect in enumerate(EFFECTS):
                tally.found[at] += int(rule(base_one, today_one + math.log(1 - effect)).sum())
    return tallies


def ours(rule: Rule = RULE) -> Callable[..., Judged]:
    return lambda base, first, again, learned: gate_rules.ours(base, first, again, learned, rule)


def without_machine(base: Floats, first: Floats, again: Floats, learned: Learned) -> Judged:
    """Ours where the machine's movement is not known."""
    return gate_rules.ours(base, first, again, Learned(learned.sigma0, None), RULE)


# What each world shows, in the order of the table. Both rules see the same sessions.
CONTROL = World(machine=0.003, start=0.005, run=0.0095)
VM = World(machine=0.020, start=0.016, run=0.030)
WORLDS: dict[str, World] = {
    "as in GATE's table: the machine's draw is one a figure": World(shared=False),
    "K = 5": World(sessions=5, shared=False),
    "K = 20": World(sessions=20, shared=False),
    "one figure alone": World(figures=1, learned=False),
    "machine 0.6 %, shared": World(history=10),
    "machine 0.6 %, shared, learned from 30 sessions": World(history=30),
    "machine 0.9 %, shared": World(machine=0.009, history=10),
    "machine 0.9 %, shared, learned from 30 sessions": World(machine=0.009, history=30),
    "machine 1.2 %, shared": World(machine=0.012, history=10),
    "machine 1.2 %, shared, learned from 30 sessions": World(machine=0.012, history=30),
    "K = 5, machine 0.9 %, shared": World(sessions=5, machine=0.009, history=5),
    "the first start is shared by all figures too": World(start_shared=True, history=10),
    "the first start is shared by all figures too, learned from 30 sessions": World(start_shared=True, history=30),
    "heavy tails (t, 3 degrees of freedom)": World(tails=3, history=10),
    "today twice as noisy": World(today=2.0, history=10),
    "sigma0 not learned": World(learned=False, history=10),
    "shared VM": replace(VM, history=10),
    "shared VM, sigma0 not learned": replace(VM, learned=False, history=10),
    "with a control": replace(CONTROL, history=10),
    "with a control, K = 20": replace(CONTROL, sessions=20, history=20),
}


def rules_of(name: str, world: World) -> dict[str, Callable[..., Judged]]:
    if name.startswith("with a control"):
        return {"ours, floors for a control": ours(WITH_CONTROL), "ours": ours()}
    if world.figures == 1:
        return {
            "ours, told of 1 figure": ours(replace(RULE, figures=1)),
            "the rule to start from": gate_rules.as_gate_had_it,
        }
    rules = {"**ours**": ours(), "the rule to start from": gate_rules.as_gate_had_it}
    return rules | {"ours, machine not learned": without_machine} if world.history else rules


def others(seed: int) -> dict[str, Callable[[Floats, Floats], Bools]]:
    return {
        "fixed 5 %": gate_rules.fixed(0.05),
        "fixed 3 %": gate_rules.fixed(0.03),
        "mean 5 % below the last session": gate_rules.last_session(0.05),
        "Welch p < .05": gate_rules.welch,
        "Mann-Whitney p < .01/30": gate_rules.mann_whitney,
        "max(3 %, 2.5 sd)": gate_rules.sigmas,
        "hierarchical bootstrap, 99 %, and 3 %": gate_rules.bootstrap(np.random.default_rng(seed + 1)),
    }


def table(sessions: int, seed: int, only: str) -> Iterator[str]:
    yield HEADER
    first = next(iter(WORLDS))
    if only in first:
        few = {"hierarchical bootstrap, 99 %, and 3 %"}
        all_others = others(seed)
        cheap = {name: rule for name, rule in all_others.items() if name not in few}
        for name, tally in simulate_others(WORLDS[first], cheap, sessions // 4, seed).items():
            yield tally.row("GATE's", name)
        dear = {name: all_others[name] for name in few}
        for name, tally in simulate_others(WORLDS[first], dear, max(CHUNK // 4, sessions // 24), seed).items():
            yield tally.row("GATE's", name)
    for name, world in WORLDS.items():
        if only in name:
            for rule, tally in simulate(world, rules_of(name, world), sessions, seed).items():
                yield tally.row(name, rule)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sessions", type=int, default=12_000, help="simulated sessions a world (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a sixth of the sessions")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--only", default="", help="only worlds whose name holds this")
    wanted = parser.parse_args()
    sessions = max(CHUNK, (wanted.sessions // 6 if wanted.quick else wanted.sessions) // CHUNK * CHUNK)
    began = time.monotonic()
    print(
        f"seed {wanted.seed}, {sessions} sessions a world (a quarter for rules without re-measures, a twenty-fourth for the bootstrap)"
    )
    print(f"rule: {RULE}")
    print(f"usual world: {World()}")
    for name, world in WORLDS.items():
        if wanted.only in name:
            print(f"  {name}: {world.differs()}")
    print()
    for line in table(sessions, wanted.seed, wanted.only):
        print(line, flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
