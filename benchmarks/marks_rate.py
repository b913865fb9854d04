"""How often the rule for marks is wrong, and how soon it is right: simulated setups, with every assumption printed.

``python benchmarks/marks_rate.py [--figures 300] [--sessions 250] [--seed 1]``. Standard library only; two minutes of CPU time.

A session's verdicts come from GATE's rule, written out small here, so that the figures do not depend on what the gate has
become. One figure a cell; marks are proposed after every session from what is known then.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.marks.evidence import RULE, FigureHistory, Rule
from pytest_llmbench.marks.propose import Proposal, propose
from pytest_llmbench.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

K = 10
RUNS = 3
AGAIN_RUNS = 5
LEVEL = 60.0  # tok/s; only its logarithm's changes matter


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log values. run: within a session, skewed to the slow side (gamma, shape 4).

    disturbed: share of sessions in which something else takes ``by``; the guard sees ``seen`` of them; one that it does not
    see lasts through each re-measurement with probability ``lasts``.
    """

    name: str
    run: float = 0.015
    start: float = 0.008
    machine: float = 0.006
    disturbed: float = 0.02
    by: float = 0.10
    seen: float = 0.90
    lasts: float = 0.5


@dataclass(frozen=True, slots=True)
class Setup:
    """What is true of the setup: shift of its log speed, and chances of a slow start, a slow run and a survived crash."""

    name: str
    shift: float = 0.0
    slow_start: float = 0.0
    slow_start_by: float = 0.0
    slow_run: float = 0.0
    slow_run_by: float = 0.0
    crash: float = 0.0


UNCHANGED = Setup("unchanged")
NOISES = (
    Noise("GATE's"),
    Noise("quiet box", run=0.003, start=0.002, machine=0.002),
    Noise("runs only", start=0.0, machine=0.0),
    Noise("machine 1.2 %", machine=0.012),
    Noise("shared VM 3.3 %", run=0.02, start=0.01, machine=0.028),
    Noise("10 % disturbed", disturbed=0.10),
)
SETUPS = (
    Setup("5 % slower", shift=-0.051),
    Setup("8 % slower", shift=-0.083),
    Setup("a third of the starts 8 % slow", slow_start=1 / 3, slow_start_by=-0.083),
    Setup("a third of the starts 20 % slow", slow_start=1 / 3, slow_start_by=-0.223),
    Setup("half of the starts 6 % slow", slow_start=0.5, slow_start_by=-0.062),
    Setup("a third of the runs 20 % slow", slow_run=1 / 3, slow_run_by=-0.223),
    Setup("a crash in a third of the sessions", crash=1 / 3),
)


RULES = (
    ("this rule", RULE),
    ("as GATE's table", replace(RULE, mode_turns=0, mode_sigmas=0.0, spread_sds=4.7)),
)


class Figure:
    """A figure of one setup on one machine: first ten sessions of a baseline, then judged sessions."""

    def __init__(self, rng: random.Random, noise: Noise, sigma0: float | None = None) -> None:
        self.rng, self.noise = rng, noise
        self._machine, self._disturbed = 0.0, False
        medians: list[float] = []
        while len(medians) < K:
            self._enter()
            if not (self._disturbed and rng.random() < noise.seen):
                medians.append(statistics.median(self._start(UNCHANGED, RUNS)))
        self.s = statistics.stdev(sorted(medians)[1:]) * 1.15  # without the slowest; consistency-corrected
        ordered = sorted(medians)
        self.reference = statistics.fmean(ordered[2:-2])
        sigma0 = self.s if sigma0 is None else sigma0
        self.sigma = math.sqrt((20 * sigma0**2 + 9 * self.s**2) / 29)
        self.noisy = self.s > 1.8 * sigma0

    def _enter(self) -> None:
        """A new session: the machine's state, and whether something else works."""
        self._machine = self.rng.gauss(0, self.noise.machine)
        self._disturbed = self.rng.random() < self.noise.disturbed

    def _start(self, setup: Setup, runs: int, *, disturbed: bool | None = None) -> list[float]:
        """Log values of the runs of one server start."""
        rng, noise = self.rng, self.noise
        level = math.log(LEVEL) + setup.shift + self._machine + rng.gauss(0, noise.start)
        level += setup.slow_start_by if rng.random() < setup.slow_start else 0.0
        level += math.log1p(-noise.by) if (self._disturbed if disturbed is None else disturbed) else 0.0
        values = []
        for _ in range(runs):
            slow = setup.slow_run_by if rng.random() < setup.slow_run else 0.0
            values.append(level + slow - noise.run * (rng.gammavariate(4, 1) - 4) / 2)
        return values

    def session(self, number: int, setup: Setup) -> Outcome:
        """One judged session."""
        self._enter()
        values = self._start(setup, RUNS)
        unseen = self._disturbed and self.rng.random() >= self.noise.seen
        usable = not self._disturbed or unseen
        d = statistics.median(values) - self.reference
        one = math.sqrt(1 + 1.1 / K)
        clear = d >= -max(0.015, 1.05 * self.sigma * one)
        verdict, dip, change = "ok", False, d
        if self.noisy:
            verdict = "noisy"
        elif usable and d < -max(0.02, 1.4 * self.sigma * one):
            again = []
            for _ in range(3):
                lasts = unseen and self.rng.random() < self.noise.lasts
                value = statistics.median(self._start(setup, AGAIN_RUNS, disturbed=lasts)) - self.reference
                again.append(value)
                if value >= -max(0.015, 1.05 * self.sigma * one):
                    dip = d < -max(0.05, 3 * self.sigma * one)
                    clear, change = True, value
                    break
            else:
                change = statistics.fmean(sorted([d, *again])[-3:])
                bad = change < -max(0.03, 3.3 * self.sigma * math.sqrt(1 / 3 + 1.1 / K))
                verdict = "regressed" if bad else "inconclusive"
        return Outcome(
            session=f"s{number:04}",
            started=f"2026-01-01T00:{number // 60:02}:{number % 60:02}",
            usable=usable,
            disturbed=not usable,
            crashed=self.rng.random() < setup.crash,
            verdict=verdict,  # type: ignore[arg-type]
            value=math.exp(statistics.median(values)),
            values=tuple(math.exp(value) for value in values),
            reference=math.exp(self.reference),
            change=math.expm1(change),
            sigma=self.sigma,
            dip=dip,
            clear=clear,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one figure: the session after which each mark was first proposed, and why."""

    slow: int | None = None
    flaky: int | None = None
    why: tuple[str, ...] = ()
    slow_depth: float | None = None
    later: tuple[float, ...] = ()


def follow(figure: Figure, setup: Setup, sessions: int, rule: Rule, unchanged: int = 0) -> Found:
    """Sessions of a setup, after some unchanged ones; later: how deep the failures after the slow proposal went."""
    outcomes: list[Outcome] = []
    found = Found()
    for number in range(unchanged + sessions):
        outcomes.append(figure.session(number, UNCHANGED if number < unchanged else setup))
        if number < unchanged:
            continue
        if found.slow is not None and outcomes[-1].verdict == "regressed":
            assert outcomes[-1].change is not None
            found = replace(found, later=(*found.later, -outcomes[-1].change))
        for one in propose([FigureHistory("decode_tok_s", "higher", tuple(outcomes[-15:]))], rule=rule):
            found = _first(found, one, number - unchanged + 1)
    return found


def _first(found: Found, one: Proposal, number: int) -> Found:
    if one.mark == "slow" and found.slow is None:
        return replace(found, slow=number, slow_depth=one.depth)
    if one.mark == "flaky" and found.flaky is None:
        return replace(found, flaky=number, why=one.lines)
    return found


def sigma0_of(rng: random.Random, noise: Noise) -> float:
    """The median spread of 30 figures, as a machine would have learnt it."""
    return statistics.median(Figure(rng, noise).s for _ in range(30))


def many(
    noise: Noise, setup: Setup, figures: int, sessions: int, seed: int, rule: Rule = RULE, unchanged: int = 0
) -> list[Found]:
    rng = random.Random(f"{seed} {noise.name} {setup.name}")
    sigma0 = sigma0_of(rng, noise)
    return [follow(Figure(rng, noise, sigma0), setup, sessions, rule, unchanged) for _ in range(figures)]


def clopper_pearson(hits: int, of: int) -> tuple[float, float]:
    """Exact 95 % interval of a rate."""

    def log_share(p: float, k: int) -> float:
        choose = math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
        return choose + k * math.log(p) + (of - k) * math.log1p(-p)

    def tail(p: float, counts: range) -> float:
        return math.fsum(math.exp(log_share(p, k)) for k in counts)

    def solve(is_low: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if is_low(middle) else (low, middle)
        return low

    lower = 0.0 if hits == 0 else solve(lambda p: tail(p, range(hits, of + 1)) < 0.025)
    upper = 1.0 if hits == of else solve(lambda p: tail(p, range(hits + 1)) > 0.025)
    return lower, upper


def rate(hits: int, of: int) -> str:
    low, high = clopper_pearson(hits, of)
    return f"{hits}/{of} = {hits / of:.1%} ({low:.1%} to {high:.1%})"


def _ground(why: Sequence[str]) -> str:
    words = {"events": "events in", "runs": "differ too much", "modes": "two modes"}
    return "+".join(name for name, text in words.items() if any(text in line for line in why))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        f"rule: {RULE}\nassumed: {RUNS} runs a session, {AGAIN_RUNS} a re-measurement, baseline of {K}, sigma0 from 30 figures"
    )
    print(f"\nUnchanged figures that were ever proposed in {args.sessions} sessions (95 % interval):")
    for noise in NOISES:
        print(f"  {noise}")
        for name, rule in RULES:
            found = many(noise, UNCHANGED, args.figures, args.sessions, args.seed, rule)
            flaky = [one for one in found if one.flaky is not None]
            grounds = [_ground(one.why) for one in flaky]
            by = ", ".join(f"{grounds.count(one)} by {one}" for one in dict.fromkeys(grounds))
            print(f"    {name}: flaky {rate(len(flaky), len(found))} {by}")
            print(f"      slow {rate(sum(one.slow is not None for one in found), len(found))}")
    print(
        "\nChanged after 20 unchanged sessions, GATE's noise: proposed within 20 sessions, median session of the proposal:"
    )
    for setup in SETUPS:
        for name, rule in RULES:
            found = many(NOISES[0], setup, args.figures, 20, args.seed, rule, unchanged=20)
            told = []
            for mark in ("slow", "flaky"):
                when = [one for one in (getattr(f, mark) for f in found) if one is not None]
                told.append(
                    f"{mark} {rate(len(when), len(found))}" + (f", after {statistics.median(when):g}" if when else "")
                )
            later = [(depth, f.slow_depth) for f in found for depth in f.later]
            deep = sum(depth > limit for depth, limit in later if limit is not None)
            told += [f"later failures deeper than the slow mark {rate(deep, len(later))}"] if later else []
            print(f"  {setup.name}, {name}: {'; '.join(told)}")


if __name__ == "__main__":
    main()
