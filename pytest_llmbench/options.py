"""Flags, ini values and environment variables, and the one typed Settings object out of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

# name, type, help; every one is a flag --llmbench-NAME, an ini llmbench_NAME and a variable LLMBENCH_NAME.
_VALUES: tuple[tuple[str, str, str], ...] = (
    ("storage", "DIR", "where runs and saved sessions are kept (default: ./.llmbench)"),
    ("parts", "LIST", "measure only these parts of the plan, comma-separated (decode,prefill,…)"),
    ("save", "NAME", "save the session's figures under this name, to compare with later"),
    ("compare", "NAME", "compare with the session saved under this name; refuses other cards and machines"),
    ("model", "PATH", "use this model file in place of the one that the card names (same size and hash)"),
    ("json", "PATH", "also write the report document to this path"),
    (
        "history",
        "URL",
        "where sessions are remembered: a file or a database URL (default: history.sqlite in the storage)",
    ),
    ("baseline", "FILE", "judge by the baselines of this file, in place of those that the history holds"),
    (
        "marks",
        "FILE",
        "the reviewed file of slow and flaky marks (default: llmbench-marks.json in pytest's root folder)",
    ),
    ("remeasure", "N", "measure a suspect cell again on at most N fresh servers before it is judged; 0: never"),
    ("verdict", "PATH", "also write the verdict file to this path"),
    ("ready-timeout", "SECONDS", "how long a server may load before it counts as failed (default: 600)"),
    ("silence-timeout", "SECONDS", "how long a request may be silent before it counts as hung (default: 1800)"),
)
# name, help; each is a list of whole numbers in place of the card's.
_LISTS: tuple[tuple[str, str], ...] = (
    ("levels", "requests at once of concurrency, in place of the card's (1,2,64)"),
    ("depths", "prompt tokens of prefill and context, in place of the card's (2048,16384)"),
    ("sizes", "context sizes of fit, in place of the card's (4096,8192)"),
)
# name, help; each is a switch --llmbench-NAME, an ini llmbench_NAME and a variable LLMBENCH_NAME.
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("no-history", "neither remember this session nor judge by earlier ones"),
    ("require-baseline", "a figure without a baseline fails"),
    ("strict", "a figure that stays inconclusive fails"),
)
_COMPARE_FAIL = "compare-fail"
DEFAULT_TOLERANCE = 0.10
MOST_AGAIN = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line, ini and environment ask for. Paths are absolute; shares are fractions (0.05 = 5 %)."""

    setups: tuple[Path, ...]
    storage: Path
    parts: tuple[str, ...] | None
    save: str | None
    autosave: bool
    compare: str | None
    tolerance: float
    tolerances: Mapping[str, float]
    model: Path | None
    json: Path | None
    ready_timeout_s: float
    silence_timeout_s: float
    variables: Mapping[str, str]
    levels: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None
    runs: int | None = None
    probe: bool = False
    resume: str | None = None
    supplement: str | None = None
    supplement_reason: str | None = None
    history: str | None = None
    no_history: bool = False
    baseline: Path | None = None
    marks: Path = Path("llmbench-marks.json")
    remeasure: int | None = None
    require_baseline: bool = False
    strict: bool = False
    accept: str | None = None
    verdict: Path | None = None


def add_options(parser: pytest.Parser) -> None:
    """Declare every flag and ini value. Nothing else happens here."""
    group = parser.getgroup("llmbench", "benchmarks of LLM servers")
    group.addoption(
        "--setup", action="append", metavar="CARD", help="a setup card (JSON) to measure; may be given several times"
    )
    for name, metavar, text in _VALUES:
        group.addoption(f"--llmbench-{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"llmbench_{_key(name)}", text, default=None)
    for name, text in _LISTS:
        group.addoption(f"--llmbench-{name}", metavar="LIST", default=None, help=text)
    for name, text in _SWITCHES:
        group.addoption(f"--llmbench-{name}", action="store_true", default=None, help=text)
        parser.addini(f"llmbench_{_key(name)}", text, type="bool", default=False)
    group.addoption(
        "--llmbench-accept",
        metavar="REASON",
        default=None,
        help="start new baselines with this session, and say why; its figures are not compared with the old ones",
    )
    group.addoption(
        "--llmbench-runs", metavar="N", default=None, help="runs (rounds) of every cell, in place of the card's"
    )
    group.addoption(
        "--llmbench-probe",
        action="store_true",
        default=None,
        help="a trial: one run each, 128 tokens at most; labelled, kept, never judged, compared or saved",
    )
    group.addoption(
        "--llmbench-resume",
        nargs="?",
        const="last",
        default=None,
        metavar="RUN",
        help="go on with a run that was cut short: a session's id or folder (default: the card's last unfinished one)",
    )
    group.addoption(
        "--llmbench-supplement",
        metavar="RUN",
        default=None,
        help="add to a run the cells that lack a valid result, or replace the parts named by --llmbench-parts",
    )
    group.addoption(
        "--llmbench-supplement-reason",
        metavar="TEXT",
        default=None,
        help="why; stated beforehand, and part of the record",
    )
    group.addoption(
        f"--llmbench-{_COMPARE_FAIL}",
        action="append",
        metavar="[FIGURE:]PERCENT",
        help="with --llmbench-compare: fail a figure that is worse by more than this (default: "
        f"{DEFAULT_TOLERANCE:.0%}); FIGURE: for one figure, as in decode_tok_s:5%%",
    )
    group.addoption(
        "--llmbench-autosave", action="store_true", default=None, help="save the session under its date and time"
    )
    group.addoption(
        "--llmbench-var",
        action="append",
        metavar="NAME=VALUE",
        help="fill the placeholder <NAME> of the card's server arguments and environment",
    )
    parser.addini("llmbench_setup", "setup cards to measure when no --setup is given", type="linelist", default=[])


def _key(name: str) -> str:
    return name.replace("-", "_")


def read(config: pytest.Config) -> Settings | None:
    """The settings, or None where no setup is named (then this plugin stays out of the way).

    Precedence: flag, ini, environment. Raises pytest.UsageError.
    """
    base = config.invocation_params.dir
    setups = _setups(config)
    if not setups:
        return None
    tolerance, tolerances = _tolerances(config.getoption(f"--llmbench-{_COMPARE_FAIL}") or ())
    parts = _value(config, "parts")
    return Settings(
        setups=tuple(base / Path(os.path.expandvars(s)).expanduser() for s in setups),
        storage=base / Path(os.path.expandvars(_value(config, "storage") or ".llmbench")).expanduser(),
        parts=_parts(parts) if parts is not None else None,
        save=_name(config, "save"),
        autosave=bool(config.getoption("--llmbench-autosave")),
        compare=_name(config, "compare"),
        tolerance=tolerance,
        tolerances=tolerances,
        model=_path(config, "model"),
        json=_path(config, "json"),
        ready_timeout_s=_seconds(config, "ready-timeout", 600.0),
        silence_timeout_s=_seconds(config, "silence-timeout", 1800.0),
        variables=_variables(config.getoption("--llmbench-var") or ()),
        levels=_numbers(config, "levels"),
        depths=_numbers(config, "depths"),
        sizes=_numbers(config, "sizes"),
        runs=_runs(config),
        probe=bool(config.getoption("--llmbench-probe")),
        resume=_run(config, "resume"),
        supplement=_run(config, "supplement"),
        supplement_reason=(config.getoption("--llmbench-supplement-reason") or "").strip() or None,
        history=_history(config),
        no_history=_switch(config, "no-history"),
        baseline=_path(config, "baseline"),
        marks=_path(config, "marks") or config.rootpath / "llmbench-marks.json",
        remeasure=_count(config, "remeasure"),
        require_baseline=_switch(config, "require-baseline"),
        strict=_switch(config, "strict"),
        accept=_reason(config, "accept"),
        verdict=_path(config, "verdict"),
    )


def _setups(config: pytest.Config) -> list[str]:
    given = config.getoption("--setup")
    if given:
        return list(given)
    ini = config.getini("llmbench_setup")
    if ini:
        return list(ini)
    variable = os.environ.get("LLMBENCH_SETUP")
    return [variable] if variable else []


def _value(config: pytest.Config, name: str) -> str | None:
    flag: str | None = config.getoption(f"--llmbench-{name}")
    if flag is not None:
        return flag
    ini: str | None = config.getini(f"llmbench_{_key(name)}")
    return ini or os.environ.get(f"LLMBENCH_{_key(name).upper()}") or None


def _path(config: pytest.Config, name: str) -> Path | None:
    text = _value(config, name)
    return config.invocation_params.dir / Path(text).expanduser() if text else None


def _history(config: pytest.Config) -> str | None:
    """A database's URL as it is; a file's path made absolute."""
    text = _value(config, "history")
    return text if text is None or "://" in text else str(_path(config, "history"))


def _switch(config: pytest.Config, name: str) -> bool:
    if config.getoption(f"--llmbench-{name}") or config.getini(f"llmbench_{_key(name)}"):
        return True
    variable = f"LLMBENCH_{_key(name).upper()}"
    word = os.environ.get(variable, "").strip().lower()
    if word not in {"", "0", "1", "false", "true", "no", "yes", "off", "on"}:
        raise pytest.UsageError(f"{variable} = {word!r}: neither yes nor no\n  remedy: {variable}=1, or unset it")
    return word in {"1", "true", "yes", "on"}


def _count(config: pytest.Config, name: str) -> int | None:
    text = _value(config, name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) > MOST_AGAIN:
        raise pytest.UsageError(
            f"--llmbench-{name} = {text!r}: not a whole number from 0 to {MOST_AGAIN}\n  remedy: --llmbench-{name} 3"
        )
    return int(text)


def _reason(config: pytest.Config, name: str) -> str | None:
    text: str | None = config.getoption(f"--llmbench-{name}")
    if text is not None and not text.strip():
        raise pytest.UsageError(
            f'--llmbench-{name}: says no reason\n  remedy: --llmbench-{name} "new driver: 2 % slower, and we need it"'
        )
    return text.strip() if text else None


def _name(config: pytest.Config, option: str) -> str | None:
    name = _value(config, option)
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise pytest.UsageError(
            f"--llmbench-{option} = {name!r}: not a usable name\n"
            "  remedy: use letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def _numbers(config: pytest.Config, name: str) -> tuple[int, ...] | None:
    text = config.getoption(f"--llmbench-{name}")
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise pytest.UsageError(
            f"--llmbench-{name} = {text!r}: not a list of whole numbers above 0\n  remedy: --llmbench-{name} 1,2,64"
        )
    return tuple(map(int, words))


def _run(config: pytest.Config, name: str) -> str | None:
    """A session's id as it is, or the folder of a run."""
    given: str | None = config.getoption(f"--llmbench-{name}")
    if not given:
        return None
    path = config.invocation_params.dir / Path(given).expanduser()
    return str(path) if path.is_dir() else given


def _runs(config: pytest.Config) -> int | None:
    found = _numbers(config, "runs")
    if found is not None and len(found) > 1:
        raise pytest.UsageError(f"--llmbench-runs = {','.join(map(str, found))!r}: one number is for all cells")
    return found[0] if found else None


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(word.strip() for word in text.split(",") if word.strip())
    if not parts:
        raise pytest.UsageError(
            f"--llmbench-parts = {text!r}: names no part\n  remedy: --llmbench-parts decode,prefill"
        )
    return parts


def _seconds(config: pytest.Config, name: str, default: float) -> float:
    text = _value(config, name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"--llmbench-{name} = {text!r}: not a number of seconds above 0")
    return seconds


def _tolerances(given: list[str] | tuple[str, ...]) -> tuple[float, dict[str, float]]:
    default, special = DEFAULT_TOLERANCE, {}
    for text in given:
        figure, _, number = text.rpartition(":")
        try:
            share = float(number.strip().removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf"):
            raise pytest.UsageError(
                f"--llmbench-compare-fail = {text!r}: not a percentage\n  remedy: 5%, or decode_tok_s:5% for one figure"
            )
        if figure:
            special[figure] = share
        else:
            default = share
    return default, special


def _variables(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise pytest.UsageError(f"--llmbench-var = {text!r}: not NAME=VALUE")
        variables[name.strip("<>")] = value
    return variables
