"""``llmbench resolve``: what it takes to see an effect on this machine, from this machine's own history."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.cli import common
from pytest_llmbench.errors import InputError, counted
from pytest_llmbench.gate import power, seen
from pytest_llmbench.gate.lines import RULE
from pytest_llmbench.gate.spread import usable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.history.listing import Setup
    from pytest_llmbench.history.read import KeptBaseline
    from pytest_llmbench.history.store import Store

NAME = "resolve"
HELP = "say how many runs, re-measures, sessions and minutes each figure needs to see an effect on this machine"
# More sessions would ask about another season.
_SESSIONS = 50
_SHOWN = 3
_LEAST_EFFECT = 0.001


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found for a figure. answer: None while its history is too short; missing: how many more sessions it needs."""

    cell: str
    figure: str
    sessions: int
    missing: int
    known: seen.Figure | None = None
    answer: power.Answer | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_place(parser)
    parser.add_argument("card", metavar="CARD", help="a card's file, or its id")
    parser.add_argument("--effect", metavar="PERCENT", required=True, help="the worsening that must be seen, as in 3%%")
    parser.add_argument("--found", metavar="PERCENT", default="95%", help="how often it must be found (default: 95%%)")
    parser.add_argument(
        "--alarms",
        metavar="PERCENT",
        default="1%",
        help="in how many unchanged sessions at most any figure of the card may raise a false alarm (default: 1%%)",
    )
    parser.add_argument("--host", metavar="ID", help="the start of a host id, where there are several machines")
    parser.add_argument("--cell", metavar="CELL", help="only this cell, as in decode[code]")
    parser.add_argument("--figure", metavar="FIGURE", help="only this figure, as in decode_tok_s")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    effect = common.share("--effect", args.effect, least=_LEAST_EFFECT)
    found = common.share("--found", args.found, example="95%")
    alarms = common.share("--alarms", args.alarms, example="1%")
    card = common.card_id(args.card)
    with common.open_store(args) as store:
        if not store.setups(card):
            raise InputError(
                "card", card, f"not in {store.url}", f"measure it first: {_trial(args.card, RULE.least_sessions)}"
            )
        setup = common.one_setup(store, card, args.host)
        kept = _judged(store, setup)
        chosen = _chosen(kept, args.cell, args.figure)
        rates = power.Rates(alarms / max(1, len(kept)), found)
        machine = store.machine_state(setup.identity, _SESSIONS)
        answers = [_ask(store, one, machine, effect, rates) for one in chosen]
    if args.json:
        print(json.dumps(_as_json(setup, effect, rates, machine, answers), indent=2))
    else:
        _print(setup, effect, (alarms, len(kept)), rates, machine, answers, args.card)
    return 0


def _judged(store: Store, setup: Setup) -> list[KeptBaseline]:
    """The figures that sessions judge; the history keeps their companions too."""
    return [
        one
        for one in store.kept_baselines(setup.identity)
        if any(each.verdict for each in store.outcomes(one.cell_key, one.machine_key, one.figure, _SESSIONS))
    ]


def _chosen(kept: Sequence[KeptBaseline], cell: str | None, figure: str | None) -> list[KeptBaseline]:
    of_cell = [one for one in kept if cell in (None, one.cell)]
    if cell is not None and not of_cell:
        there = ", ".join(dict.fromkeys(one.cell for one in kept)) or "none"
        raise InputError("--cell", cell, f"no judged cell of this card (there are: {there})", "name one of them")
    chosen = [one for one in of_cell if figure in (None, one.figure)]
    if not chosen:
        there = ", ".join(f"{one.cell} {one.figure}" for one in of_cell) or "none"
        raise InputError("--figure", figure, f"not judged (there: {there})", "name another")
    return chosen


def _ask(store: Store, kept: KeptBaseline, machine: Machine | None, effect: float, rates: power.Rates) -> _Found:
    good = len(usable(kept.baseline.values))
    missing = max(0, RULE.least_sessions - good)
    if missing:
        return _Found(kept.cell, kept.figure, good, missing)
    tries = store.tries(kept.cell_key, kept.machine_key, kept.figure, _SESSIONS)
    known = seen.figure(kept.baseline, kept.direction, [(one.runs, one.run_s, one.start_s) for one in tries], machine)
    runs = sorted({2, 3, 5, known.runs})
    return _Found(kept.cell, kept.figure, good, 0, known, power.resolve(effect, [known.noise], rates=rates, runs=runs))


def _print(
    setup: Setup,
    effect: float,
    alarms: tuple[float, int],
    rates: power.Rates,
    machine: Machine | None,
    answers: Sequence[_Found],
    card: str,
) -> None:
    from pytest_llmbench.history import keys  # noqa: PLC0415

    print(
        f"{setup.card_id} on {keys.machine_label(setup.identity['machine'])}: what shows a worsening by {effect:.1%} here, cheapest first ({counted(setup.sessions, 'session')} until {setup.last[:10]})"
    )
    print(
        f"asked: found in {rates.power:.0%} of sessions; any of {alarms[1]} figures raises a false alarm in at most "
        f"{alarms[0]:.1%} of unchanged sessions ({rates.alarm:.3%} each)\n"
    )
    rows = [_row(one, option) for one in answers if one.answer for option in one.answer.options[:_SHOWN]]
    if rows:
        head = (
            "cell", "figure", "runs", "again", "baseline", "found", "false alarm", "min/session", "min if suspect",
            "min baseline",
        )  # fmt: skip
        print(common.table(head, rows, right=range(2, 10)))
        print()
    for one in answers:
        if one.answer is not None and not one.answer.options:
            print(f"{one.cell} {one.figure}: {one.answer.why}")
        elif one.missing:
            print(
                f"{one.cell} {one.figure}: too short a history: {_sessions(one.sessions)}, {RULE.least_sessions} are needed\n"
                f"  a trial of {_sessions(one.missing)} gives it, half an hour apart: {_trial(card, one.missing)}"
            )
    print("noise, as standard deviations of logs (about shares):")
    noise = [
        (
            f"  {one.cell}", one.figure, f"{one.known.sigma:.2%}", f"{one.known.noise.machine:.2%}",
            f"{one.known.noise.start:.2%}", f"{one.known.noise.run:.2%}", str(one.sessions), str(one.known.runs),
        )
        for one in answers
        if one.known is not None
    ]  # fmt: skip
    if noise:
        columns = ("  cell", "figure", "session", "machine", "start", "run", "sessions", "runs")
        print(common.table(columns, noise, right=range(2, 8)))
    learned = (
        f"from {counted(machine.figures, 'figure')} over {counted(machine.sessions, 'session')}: what they share"
        if machine is not None
        else "not learned (5 figures in 5 sessions are needed)"
    )
    print(f"  the machine's part: {learned}; no number of runs or starts takes it out")
    for said in dict.fromkeys(text for one in answers if one.known is not None for text in one.known.assumed):
        print(f"  assumed: {said}")
    print(
        "  assumed: normal noise that stays as it was; re-measures of 5 runs; without a control\n"
        "again: fresh servers x runs where a session is suspect. min if suspect: such a session, to the end. docs/resolve.md"
    )


def _row(one: _Found, option: power.Option) -> tuple[str, ...]:
    return (
        one.cell,
        one.figure,
        str(option.runs),
        f"{option.again} x {option.again_runs}",
        str(option.sessions),
        f"{option.found:.1%}",
        f"{option.false_alarm:.3%}",
        f"{option.minutes:.1f}",
        f"{option.minutes_suspect:.1f}",
        f"{option.minutes_baseline:.0f}",
    )


def _trial(card: str, sessions: int) -> str:
    path = card if Path(card).is_file() else "CARD"
    return f"pytest bench_suites/ --setup {path}{f', {sessions} times, at least half an hour apart' if sessions > 1 else ''}"


def _sessions(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _as_json(
    setup: Setup, effect: float, rates: power.Rates, machine: Machine | None, answers: Sequence[_Found]
) -> dict[str, Any]:
    return {
        "card": setup.card_id,
        "effect": effect,
        "power": rates.power,
        "false_alarm": rates.alarm,
        "machine": asdict(machine) if machine is not None else None,
        "figures": [
            {
                "cell": one.cell,
                "figure": one.figure,
                "sessions": one.sessions,
                "missing": one.missing,
                "why": one.answer.why if one.answer else f"too short a history: {one.missing} more sessions are needed",
                "least": one.answer.least if one.answer else None,
                "options": [asdict(option) for option in one.answer.options] if one.answer else [],
                "noise": None
                if one.known is None
                else {
                    "session": one.known.sigma,
                    "machine": one.known.noise.machine,
                    "start": one.known.noise.start,
                    "run": one.known.noise.run,
                    "runs": one.known.runs,
                    "start_minutes": one.known.noise.start_minutes,
                    "run_minutes": one.known.noise.run_minutes,
                },
                "assumed": list(one.known.assumed) if one.known else [],
            }
            for one in answers
        ],
    }
