"""The gate on real sessions (``collect.py`` beside this file): false alarms and slowdowns found, with and without a control.

    python benchmarks/proof/judge.py DATA.jsonl [--baseline 10] [--draws 40] [--keep-disturbed]

How it is judged, in full:

- Sessions are in the order in which they were made. The first half of the unchanged ones is for *tuning* (sigma0, and whatever a
  person changes after looking); the second half is *held out*. Both are shown, apart.
- A session with a run that the guard calls disturbed is left out (by validity, never by value), unless --keep-disturbed.
- A baseline is K earlier unchanged sessions drawn at random, --draws times for each judged session. Fresh starts for a suspect
  are the sessions that follow at once: real server starts of the same variant, on the machine as it went on. A session with fewer than
  four of them after it is not judged: so blocks of a plan should have eight sessions and more.
- The control's fit uses all unchanged sessions before the judged one (at most 60). Without a control: the rule alone.
- sigma0 is the median over the figures of the spread in the tuning half: of raw session medians, and of residuals.
- "alarm" of a session: at least one figure regressed; its rate is the mean over draws. Draws of one session are not independent,
  so bounds count sessions: those in which at least half of the draws alarm. Exact (Clopper-Pearson), one-sided 95 %.
- "in numbers": the setup's values of a judged session and of its fresh starts times (1 - effect): what a true slowdown of the
  server alone would be. "for real": sessions with a slowdown made outside our code.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from pytest_llmbench.gate import combined, rule
from pytest_llmbench.gate.bounds import at_least, at_most
from pytest_llmbench.gate.control import ControlFit, Pair, baseline_without_machine, fit
from pytest_llmbench.gate.robust import robust_sd
from pytest_llmbench.gate.rule import RULE, WITH_CONTROL, Decision, decide
from pytest_llmbench.records import Baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_llmbench.records import Direction

FIGURES: dict[str, Direction] = {"decode_tok_s": "higher", "prefill_tok_s": "higher", "wall_s": "lower"}
CONTROLS = {"same": True, "other": False}
EFFECTS = (0.03, 0.05, 0.10)
LEAST_FRESH, MOST_FRESH = 4, 5
"""Fresh starts that a suspect must be able to get; sessions at the end of a block, with fewer after them, are not judged."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Session:
    """Medians over runs, by (role, "cell figure")."""

    number: int
    variant: str
    medians: dict[Key, float]
    disturbed: bool


@dataclass(slots=True)
class Tally:
    """What became of judged sessions: by session, the share of draws with each kind."""

    alarms: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def hits(self) -> int:
        return sum(share >= 0.5 for share in self.alarms)


def read(path: Path) -> list[Session]:
    """Finished sessions of a file, in order; lines that were cut off are passed over."""
    runs: dict[int, list[dict[str, Any]]] = defaultdict(list)
    ended: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue
        if one["kind"] == "run":
            if one["run"] == 1 and any(
                (r["role"], r["cell"], 1) == (one["role"], one["cell"], r["run"]) for r in runs[one["session"]]
            ):
                runs[one["session"]] = []  # made again after a kill
            runs[one["session"]].append(one)
        elif one["kind"] == "session":
            ended[one["session"]] = one["variant"]
    return [_session(number, variant, runs[number]) for number, variant in sorted(ended.items())]


def _session(number: int, variant: str, runs: Sequence[dict[str, Any]]) -> Session:
    values: dict[Key, list[float]] = defaultdict(list)
    for run in runs:
        for figure in FIGURES:
            if (value := run["figures"][figure]) is not None:
                values[run["role"], f"{run['cell']} {figure}"].append(value)
    medians = {key: statistics.median(found) for key, found in values.items()}
    return Session(number, variant, medians, any(run["guard"] == "disturbed" for run in runs))


class Judge:
    """Judges sessions by earlier ones."""

    def __init__(self, sessions: Sequence[Session], k: int, draws: int, seed: int) -> None:
        self.sessions, self.k, self.draws = sessions, k, draws
        self.unchanged = [s for s in sessions if s.variant == "none"]
        self.names = sorted(name for role, name in self.unchanged[0].medians if role == "setup")
        self.tuning = self.unchanged[: len(self.unchanged) // 2]
        self._rng = random.Random(seed)
        self._fits: dict[tuple[int, str, str], ControlFit] = {}
        self.sigma0: dict[str | None, float | None] = {None: self._typical(lambda name: robust_sd(self._logs(name)))}
        for control in CONTROLS:
            fits = [self.fitted(len(self.tuning), name, control) for name in self.names]
            found = [f.residual_sd for f in fits if f is not None and f.residual_sd is not None]
            self.sigma0[control] = statistics.median(found) if found else None

    def _typical(self, spread: Callable[[str], float]) -> float | None:
        return statistics.median(map(spread, self.names)) if len(self.tuning) >= 5 else None

    def _logs(self, name: str, role: str = "setup") -> list[float]:
        return [math.log(s.medians[role, name]) for s in self.tuning]

    def fitted(self, before: int, name: str, control: str) -> ControlFit | None:
        """The control's worth by the first ``before`` unchanged sessions."""
        key = before, name, control
        if key not in self._fits and before:
            history = [
                Pair(s.medians["setup", name], s.medians[control, name], str(s.number)) for s in self.unchanged[:before]
            ]
            self._fits[key] = fit(history, FIGURES[name.split()[1]], same=CONTROLS[control])
        return self._fits.get(key)

    def fresh(self, session: Session) -> list[Session]:
        """The sessions of the same variant that follow at once: fresh starts of the same machine."""
        at = next(i for i, s in enumerate(self.sessions) if s.number == session.number)
        found: list[Session] = []
        for later in self.sessions[at + 1 :]:
            if later.variant != session.variant or len(found) == MOST_FRESH:
                break
            found.append(later)
        return found

    def judged(self, session: Session, name: str, control: str | None, effect: float, chosen: Sequence[Session]) -> str:
        """One figure of one session against one baseline; measured again on fresh starts as the rule asks."""
        direction = FIGURES[name.split()[1]]
        times = 1 / (1 - effect) if direction == "lower" else 1 - effect
        starts = [session, *self.fresh(session)]
        numbers = tuple(str(s.number) for s in chosen)
        figure = Baseline(tuple(s.medians["setup", name] for s in chosen), numbers, sigma0=self.sigma0[None])
        values = [s.medians["setup", name] * times for s in starts]
        before = sum(s.number < session.number for s in self.unchanged)
        found = self.fitted(before, name, control) if control else None
        for done in range(1, len(starts) + 1):
            left = len(starts) - done
            if control is None or found is None:
                kind: str = decide(values[0], values[1:done], figure, direction, RULE, left).kind
            else:
                kind = self._with_control(starts, values, done, name, control, found, figure, direction, left)
            if kind != "measure again":
                return kind
        return "inconclusive"

    def _with_control(
        self,
        starts: Sequence[Session],
        values: Sequence[float],
        done: int,
        name: str,
        control: str,
        found: ControlFit,
        figure: Baseline,
        direction: Direction,
        left: int,
    ) -> str:
        without = baseline_without_machine(figure, found, self.sigma0[control])
        level = replace(
            figure,
            values=tuple(self._of(number).medians[control, name] for number in figure.sessions),
        )

        def by_rule(value: float, again: Sequence[float], baseline: Baseline | None) -> Decision:
            return decide(value, again, baseline, direction, WITH_CONTROL if baseline is without else RULE, left)

        pairs = [Pair(v, s.medians[control, name]) for v, s in zip(values, starts, strict=True)]
        return combined.judge(pairs[0], pairs[1:done], found, figure, without, level, by_rule).final.kind

    def _of(self, number: str) -> Session:
        return next(s for s in self.unchanged if str(s.number) == number)

    def tally(
        self, judged: Sequence[Session], control: str | None, effect: float = 0.0, names: Sequence[str] = ()
    ) -> Tally:
        """Judge sessions, each by so many baselines drawn from the unchanged ones before it."""
        tally = Tally()
        for session in judged:
            earlier = [s for s in self.unchanged if s.number < session.number]
            if len(earlier) < self.k or len(self.fresh(session)) < LEAST_FRESH:
                continue
            hits = 0
            for _ in range(self.draws):
                chosen = sorted(self._rng.sample(earlier, self.k), key=lambda s: s.number)
                kinds = [self.judged(session, name, control, effect, chosen) for name in names or self.names]
                worst = next((k for k in ("regressed", "machine changed", "inconclusive") if k in kinds), "ok")
                tally.kinds[worst] += 1
                hits += worst == "regressed"
            tally.alarms.append(hits / self.draws)
        return tally


def rows(judge: Judge) -> Iterator[str]:
    """The report, line by line."""
    halves = {"tuning": judge.tuning, "held out": judge.unchanged[len(judge.tuning) :]}
    yield f"{len(judge.sessions)} sessions, {len(judge.unchanged)} unchanged; {len(judge.names)} figures; K = {judge.k}\n"
    yield "| figure | raw sd | same: residual, used? | other: residual, beta, used? |\n|---|---|---|---|"
    for name in judge.names:
        same, other = (judge.fitted(len(judge.unchanged), name, control) for control in CONTROLS)
        assert same is not None
        assert other is not None
        if same.raw_sd is None or same.residual_sd is None or other.residual_sd is None:
            yield f"| {name} | {same.why} | | |"
            continue
        yield (
            f"| {name} | {same.raw_sd:.2%} | {same.residual_sd:.2%}, {'yes' if same.pays else 'no'} "
            f"| {other.residual_sd:.2%}, {other.beta:.2f}, {'yes' if other.pays else 'no'} |"
        )
    controls: tuple[str | None, ...] = (None, *CONTROLS)
    yield "\nUnchanged sessions, all figures: a false alarm in\n"
    yield "| half | control | alarms, mean over draws | sessions | bound | machine changed | inconclusive |\n|---|---|---|---|---|---|---|"
    for half, sessions in halves.items():
        for control in controls:
            tally = judge.tally(sessions, control)
            if n := len(tally.alarms):
                total = sum(tally.kinds.values())
                yield (
                    f"| {half} | {control or 'none'} | {statistics.fmean(tally.alarms):.2%} | {tally.hits} of {n} "
                    f"| at most {at_most(tally.hits, n):.1%} | {tally.kinds['machine changed'] / total:.1%} "
                    f"| {tally.kinds['inconclusive'] / total:.1%} |"
                )
    yield "\nA slowdown in numbers, a figure at a time, held-out half: found in\n"
    yield "| figure | control | " + " | ".join(f"{e:.0%}" for e in EFFECTS) + " |\n|---|---|" + "---|" * len(EFFECTS)
    for name in judge.names:
        for control in controls:
            cells = [_found(judge.tally(halves["held out"], control, effect, [name])) for effect in EFFECTS]
            yield f"| {name} | {control or 'none'} | " + " | ".join(cells) + " |"
    yield "\nSlowdowns for real, all figures: verdict of the session, share of draws\n"
    yield "| variant | control | sessions | regressed | machine changed | inconclusive | ok |\n|---|---|---|---|---|---|---|"
    for variant in sorted({s.variant for s in judge.sessions} - {"none"}):
        slowed = [s for s in judge.sessions if s.variant == variant]
        for control in controls:
            tally = judge.tally(slowed, control)
            total = sum(tally.kinds.values())
            if total:
                shares = " | ".join(
                    f"{tally.kinds[k] / total:.0%}" for k in ("regressed", "machine changed", "inconclusive", "ok")
                )
                yield f"| {variant} | {control or 'none'} | {_found(tally)} | {shares} |"


def _found(tally: Tally) -> str:
    n = len(tally.alarms)
    return f"{tally.hits} of {n}, at least {at_least(tally.hits, n):.0%}" if n else "nothing judged"


def main() -> None:
    options = argparse.ArgumentParser(description="Judge the gate on collected sessions.")
    options.add_argument("data", type=Path)
    options.add_argument("--baseline", type=int, default=10, help="K (default: 10)")
    options.add_argument("--draws", type=int, default=20, help="baselines drawn for each judged session (default: 20)")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep-disturbed", action="store_true", help="judge disturbed sessions too")
    asked = options.parse_args()
    sessions = read(asked.data)
    # What is disturbed on purpose stays, or a hog could not be judged.
    kept = [s for s in sessions if asked.keep_disturbed or not s.disturbed or s.variant != "none"]
    print(__doc__.partition("\n\n")[2].partition("\n\n")[2])
    print(f"{len(sessions) - len(kept)} of {len(sessions)} sessions left out: disturbed")
    if sum(s.variant == "none" for s in kept) < 2 * asked.baseline:
        raise SystemExit(f"fewer than {2 * asked.baseline} unchanged sessions: nothing to judge yet")
    # What a figure could resolve decides nothing, is not shown here, and would take most of the time.
    with mock.patch.object(rule, "resolves", return_value=0.0):
        for line in rows(Judge(kept, asked.baseline, asked.draws, asked.seed)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
