"""``llmbench canary``: slow the server down by a known share, run the suite, and see whether the gate notices."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.cli import common
from pytest_llmbench.errors import InputError
from pytest_llmbench.history import canaries, entry
from pytest_llmbench.slowdown import FLAG, Slowdown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

NAME = "canary"
HELP = "slow the server down on purpose, measure, and say whether the gate caught it"
USAGE = 4
_SUITES = "bench_suites"
_SLOW = "10%"
_INTERRUPTED = 2  # of pytest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--setup", metavar="CARD", required=True, help="the card to measure")
    parser.add_argument("--slow", metavar="PERCENT", help="how much slower (default: 10%%)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--way",
        choices=("pause", "pace"),
        default="pause",
        help="pause: stop the server for that share of the time (default); pace: tell a paced server to be slower",
    )
    way.add_argument(
        "--threads", metavar="N", type=int, help="start the server with so many threads in place of --slow"
    )
    way.add_argument("--gpu-power", metavar="WATTS", type=float, help="lower the GPUs' power limit in place of --slow")
    way.add_argument("--gpu-clock", metavar="MHZ", type=int, help="lock the GPUs' clock in place of --slow")
    parser.add_argument(
        "--allow-gpu-limits", action="store_true", help="needed with --gpu-power and --gpu-clock; put back at the end"
    )
    parser.set_defaults(takes_the_rest=True)
    parser.epilog = f"Everything else goes to pytest: suite paths (default: {_SUITES}) and flags."


def run(args: argparse.Namespace) -> int:
    """0 caught, 1 not caught, 2 interrupted, 4 where it could not be asked."""
    slowdown = _slowdown(args)
    with tempfile.TemporaryDirectory(prefix="llmbench-canary-") as folder:
        verdict = Path(folder) / "verdict.json"
        command = [
            *(sys.executable, "-m", "pytest", *_with_suite(args.rest), "--setup", args.setup),
            *(FLAG, slowdown, "--llmbench-verdict", str(verdict)),
        ]
        # A Ctrl-C reaches the session too; it stops its server and writes its report, and we wait for that.
        code = _wait(command)
        found = _read(verdict)
    if code == _INTERRUPTED:
        print("canary: interrupted, or the suite could not be collected: nothing is known, and nothing is remembered")
        return code
    if found is None:
        print(f"canary: the session came to no verdict (pytest's exit code {code}): nothing is known")
        # 1 without a verdict file: refused before anything was measured, as where no baseline judges yet.
        return USAGE if code in (1, USAGE, 5) else 1
    return _tell(found)


def _slowdown(args: argparse.Namespace) -> str:
    gpu = args.gpu_power is not None or args.gpu_clock is not None
    if gpu and not args.allow_gpu_limits:
        raise InputError(
            "--gpu-power" if args.gpu_power is not None else "--gpu-clock",
            args.gpu_power or args.gpu_clock,
            "the limit holds for everything on that GPU, and needs the rights to set it",
            "add --allow-gpu-limits where that is fine",
        )
    given = [name for name in ("threads", "gpu_power", "gpu_clock") if getattr(args, name) is not None]
    if args.slow is not None and given:
        flag = f"--{given[0].replace('_', '-')}"
        raise InputError(
            "--slow", args.slow, f"says nothing beside {flag}, which slows down in its place", "give one of them"
        )
    slow = args.slow if args.slow is not None else _SLOW
    text = (
        f"threads:{args.threads}"
        if args.threads is not None
        else f"gpu-power:{args.gpu_power:g}"
        if args.gpu_power is not None
        else f"gpu-clock:{args.gpu_clock}"
        if args.gpu_clock is not None
        else f"{args.way}:{common.share('--slow', slow, example=_SLOW) * 100:.6g}%"
    )
    Slowdown.parse(text)
    return text


def _with_suite(rest: Sequence[str]) -> list[str]:
    """What pytest is given: the suites' folder where no path is named."""
    if any(map(_is_suite, rest)):
        return list(rest)
    if not Path(_SUITES).is_dir():
        raise InputError("suite", None, f"no path is named, and there is no {_SUITES}/ here", "name the suite's folder")
    return [_SUITES, *rest]


def _is_suite(word: str) -> bool:
    """Whether a word names tests: a value of a flag (a storage folder, -k code) does not."""
    path = Path(word.partition("::")[0])
    return not word.startswith("-") and (path.is_file() if path.suffix == ".py" else any(path.glob("test_*.py")))


def _wait(command: Sequence[str]) -> int:
    with subprocess.Popen(command) as session:
        while True:
            try:
                return session.wait()
            except KeyboardInterrupt:
                continue


def _read(verdict: Path) -> dict[str, Any] | None:
    """The verdict file with, for each card, its report's session read as a canary; None where there is none."""
    if not verdict.exists():
        return None
    found: dict[str, Any] = json.loads(verdict.read_text(encoding="utf-8"))
    found["catches"] = [
        canaries.read(entry.of_document(json.loads(report.read_text(encoding="utf-8")), str(report.parent)))
        for card in found["cards"]
        if card["report"] and (report := verdict.parent / card["report"]).exists()
    ]
    return found


def _tell(found: dict[str, Any]) -> int:
    if any(one.unknown for one in found["catches"]):
        print(f"canary: {next(one.unknown for one in found['catches'] if one.unknown)}: nothing is known")
        return 1
    caught = bool(found["catches"]) and all(one.caught for one in found["catches"])
    if caught and found["category"] != "performance":
        print(f"canary: the session ended as {found['category']}, not as performance: that is no catch")
        caught = False
    for one in found["catches"]:
        _tell_one(one)
    return 0 if caught else 1


def _tell_one(one: canaries.Catch) -> None:
    print(f"\ncanary {one.session}: {one.words} was {'caught' if one.caught else f'NOT caught: {one.why_not}'}")
    rows = [
        (
            "caught" if each.caught else "MISSED" if each.missed else "-",
            each.cell,
            each.figure,
            each.verdict,
            _percent(each.change),
            _percent(each.expected),
            "" if each.resolves is None else f"{each.resolves:.1%}",
        )
        for each in sorted(one.seen, key=lambda each: (not each.caught, not each.missed))
    ]
    if rows:
        head = ("", "cell", "figure", "verdict", "change", "planted", "resolves")
        print(common.table(head, rows, right=(4, 5, 6)))
    if any(each.missed for each in one.seen):
        print("MISSED: not seen, although the figure says that it resolves a change of that size")
    if any(not each.caught and not each.missed for each in one.seen):
        print("-: the figure does not resolve a change of that size here, is not judged yet, or its size is not known")


def _percent(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}"
