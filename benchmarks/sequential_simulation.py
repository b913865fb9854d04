"""What the sequential comparison (``gate/sequential.py``) is worth: coverage at every moment, false verdicts, pairs needed.

    python benchmarks/sequential_simulation.py [--repeats 4000] [--verdicts 400] [--seed 1]

Every assumption: a start's log figure is effect + noise; old and new starts go ABBA; a pair is the difference of two
neighbours. Noise models, each scaled to the printed sd of a start: normal; skewed (minus an exponential); heavy tails
(Student t, 3 degrees); wild (Cauchy, its quartile = 0.67 sd); two modes (a coin, 0 or 2 sd); disturbed (normal, 10 % of the
starts 10 % slower); drifting (normal, and 0.1 sd slower every start: 20 sd over 100 pairs); jump (normal, and 10 sd slower
from the 41st start on); autocorrelated (a machine state with correlation 0.9 from start to start takes 80 % of the variance);
autocorrelated pairs (the same state in d itself, correlation 0.3: against the method's assumption, to see what it costs).
Bounds beside rates are exact (Clopper-Pearson, one-sided 95 %). "Ever outside": the true change was outside the 95 %
interval after at least one of 100 pairs. Stops at the first verdict, margin 2 %, error 5 %, one figure.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING

from pytest_llmbench.gate.bounds import at_most, interval
from pytest_llmbench.gate.sequential import Asked, Bet, Sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Noise = Callable[[random.Random], Iterator[float]]

HORIZON = 100
EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
SDS = (0.005, 0.01, 0.02, 0.04)


def each(draw: Callable[[random.Random], float]) -> Noise:
    def noise(rng: random.Random) -> Iterator[float]:
        while True:
            yield draw(rng)

    return noise


def student3(rng: random.Random) -> float:
    chi = math.fsum(rng.gauss(0, 1) ** 2 for _ in range(3))
    return rng.gauss(0, 1) / math.sqrt(chi / 3) / math.sqrt(3)


def drifting(rng: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at -= 0.1
        yield at + rng.gauss(0, 1)


def jump(rng: random.Random) -> Iterator[float]:
    nth = 0
    while True:
        nth += 1
        yield rng.gauss(0, 1) - 10 * (nth > 40)


def autocorrelated(rng: random.Random, rho: float = 0.9, part: float = 0.8) -> Iterator[float]:
    state = rng.gauss(0, 1)
    while True:
        yield math.sqrt(part) * state + math.sqrt(1 - part) * rng.gauss(0, 1)
        state = rho * state + math.sqrt(1 - rho**2) * rng.gauss(0, 1)


MODELS: dict[str, Noise] = {
    "normal": each(lambda rng: rng.gauss(0, 1)),
    "skewed": each(lambda rng: 1 - rng.expovariate(1)),
    "heavy tails": each(student3),
    "wild": each(lambda rng: 0.67 * math.tan(math.pi * (rng.random() - 0.5))),
    "two modes": each(lambda rng: 2.0 * (rng.random() < 0.5)),
    "drifting": drifting,
    "jump": jump,
    "autocorrelated": autocorrelated,
}


def pairs(model: str, sd: float, effect: float, rng: random.Random) -> Iterator[float]:
    """log(new / old) of pairs that go old new, new old, old new, …"""
    if model == "autocorrelated pairs":
        state = rng.gauss(0, 1)
        while True:
            yield math.sqrt(2) * sd * state + math.log1p(-effect)
            state = 0.3 * state + math.sqrt(1 - 0.09) * rng.gauss(0, 1)
    noise = MODELS["normal" if model == "disturbed" else model](rng)
    nth = 0
    while True:
        first, second = (sd * next(noise) for _ in range(2))
        if model == "disturbed":
            first -= 0.105 * (rng.random() < 0.1)
            second -= 0.105 * (rng.random() < 0.1)
        old, new = (first, second) if nth % 2 == 0 else (second, first)
        yield new - old + math.log1p(-effect)
        nth += 1


def ever_outside(model: str, sd: float, repeats: int, rng: random.Random) -> int:
    """In how many comparisons the interval excluded the truth at some moment."""
    ruined = math.log(2 / Asked().error)
    hits = 0
    for _ in range(repeats):
        bets = Bet(0.0, 1), Bet(0.0, -1)
        source = pairs(model, sd, 0.0, rng)
        for _ in range(HORIZON):
            d = next(source)
            for bet in bets:
                bet.take(d)
        hits += any(bet.peak >= ruined for bet in bets)
    return hits


def verdict(model: str, sd: float, effect: float, rng: random.Random) -> tuple[str, int]:
    """The verdict of one comparison, and after how many pairs."""
    one = Sequential(Asked(budget=HORIZON), "higher")
    for d in pairs(model, sd, effect, rng):
        one.take(d)
        outcome = one.outcome()
        if outcome != "measure again":
            return outcome, len(one.values)
    raise AssertionError("the source of pairs has no end")


def rate(hits: int, trials: int) -> str:
    low, high = interval(hits, trials)
    return f"{hits / trials:6.2%} ({low:.2%} … {high:.2%})"


def main() -> None:
    options = argparse.ArgumentParser(description="Coverage and stopping times of the sequential comparison.")
    options.add_argument("--repeats", type=int, default=4000, help="comparisons a noise model (default: 4000)")
    options.add_argument("--verdicts", type=int, default=400, help="comparisons a cell of the tables (default: 400)")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    print(__doc__.partition("\n\n")[2].partition("\n\n")[2])
    rng, began = random.Random(asked.seed), time.monotonic()
    print(
        f"95 % interval, {asked.repeats} comparisons of {HORIZON} pairs at sd 1 %: the truth ever outside (goal <= 5 %)\n"
    )
    print("| noise | ever outside | at most | false verdict at no effect | at most |\n|---|---|---|---|---|")
    for model in (*MODELS, "disturbed", "autocorrelated pairs"):
        hits = ever_outside(model, 0.01, asked.repeats, rng)
        found = [verdict(model, 0.02, 0.0, rng)[0] in {"regressed", "improved"} for _ in range(asked.repeats // 4)]
        wrong = sum(found)
        print(
            f"| {model} | {hits / asked.repeats:.2%} | {at_most(hits, asked.repeats):.2%} "
            f"| {wrong / len(found):.2%} | {at_most(wrong, len(found)):.2%} |"
        )
    for model in ("normal", "skewed", "heavy tails", "disturbed", "autocorrelated"):
        print(
            f"\n{model}: verdicts of {asked.verdicts} comparisons; pairs: median, 90th of 100, of those that ended before {HORIZON}\n"
        )
        print(
            "| sd of a start | effect | regressed | improved | equivalent | inconclusive | pairs |\n|---|---|---|---|---|---|---|"
        )
        for sd in SDS:
            for effect in EFFECTS:
                results = [verdict(model, sd, effect, rng) for _ in range(asked.verdicts)]
                count = Counter(outcome for outcome, _ in results)
                ended = sorted(n for outcome, n in results if outcome != "inconclusive")
                often = f"{statistics.median(ended):.0f}, {ended[int(0.9 * (len(ended) - 1))]}" if ended else "-"
                shares = " | ".join(
                    f"{count[name] / asked.verdicts:.1%}"
                    for name in ("regressed", "improved", "equivalent", "inconclusive")
                )
                print(f"| {sd:.1%} | {effect:.0%} | {shares} | {often} |")
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
