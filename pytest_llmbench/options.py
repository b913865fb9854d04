"""The one typed Settings object out of flags, ini values and environment variables (``flags`` declares them)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import pytest

from pytest_llmbench.errors import InputError
from pytest_llmbench.flags import COMPARE_FAIL, DEFAULT_TOLERANCE, key

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXAMPLES = {"levels": "1,2,64", "depths": "2048,16384", "sizes": "4096,8192"}
_MOST_SECONDS = 7 * 24 * 3600
MOST_AGAIN = 20
_OFF = "off"
MOST_PAIRS = 1000


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
    marks_named: bool = False
    remeasure: int | None = None
    require_baseline: bool = False
    strict: bool = False
    accept: str | None = None
    verdict: Path | None = None
    canary: str | None = None
    control: Path | None = None
    no_control: bool = False
    against: Path | None = None
    margin: float | None = None
    pairs: int | None = None
    budget_s: float | None = None


class _Against(TypedDict):
    against: Path | None
    margin: float | None
    pairs: int | None
    budget_s: float | None


def read(config: pytest.Config) -> Settings | None:
    """The settings, or None where no setup is named (then this plugin stays out of the way).

    Precedence: flag, ini, environment. Raises pytest.UsageError.
    """
    base = config.invocation_params.dir
    setups = _setups(config)
    if not setups:
        return None
    tolerance, tolerances = _tolerances(config.getoption(f"--llmbench-{COMPARE_FAIL}") or ())
    return Settings(
        setups=tuple(_path(base, "--setup", text) for text in setups),
        storage=_path(base, *_storage(config)),
        parts=_parts(config),
        save=_name(config, "save"),
        autosave=bool(config.getoption("--llmbench-autosave")),
        compare=_name(config, "compare"),
        tolerance=tolerance,
        tolerances=tolerances,
        model=_path_of(config, "model"),
        json=_path_of(config, "json"),
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
        baseline=_path_of(config, "baseline"),
        marks=_path_of(config, "marks") or config.rootpath / "llmbench-marks.json",
        marks_named=_value(config, "marks") is not None,
        remeasure=_count(config, "remeasure"),
        require_baseline=_switch(config, "require-baseline"),
        strict=_switch(config, "strict"),
        accept=_reason(config, "accept"),
        verdict=_path_of(config, "verdict"),
        canary=config.getoption("--llmbench-canary"),
        control=None if _value(config, "control") == _OFF else _path_of(config, "control"),
        no_control=_value(config, "control") == _OFF,
        **_against(config),
    )


def _path(base: Path, field: str, text: str) -> Path:
    """A path as a user writes it: ``~`` and ``$VARS`` replaced, relative to where pytest was called."""
    if not text.strip():
        raise _refusal(field, text, "is empty", "write a path")
    replaced = os.path.expandvars(text)
    if hole := re.search(r"\$\{?(\w+)", replaced):
        reason = f"the environment variable {hole[1]} is not set"
        raise _refusal(field, text, reason, f"set {hole[1]}, or write the path out")
    try:
        return base / Path(replaced).expanduser()
    except RuntimeError:
        raise _refusal(field, text, "there is no such user, or no home folder", "write the path out") from None


def _storage(config: pytest.Config) -> tuple[str, str]:
    text, field = _found(config, "storage")
    return (field, text) if text is not None else ("--llmbench-storage", ".llmbench")


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
    return _found(config, name)[0]


def _found(config: pytest.Config, name: str) -> tuple[str | None, str]:
    """The value of a setting, and where it was said, for messages."""
    flag: str | None = config.getoption(f"--llmbench-{name}")
    if flag is not None:
        if not flag.strip():  # a shell's variable that is not set
            raise _refusal(f"--llmbench-{name}", flag, "is empty", "write a value, or leave the flag out")
        return flag, f"--llmbench-{name}"
    ini: str | None = config.getini(f"llmbench_{key(name)}")
    if ini:
        return ini, f"llmbench_{key(name)} (ini)"
    variable = f"LLMBENCH_{key(name).upper()}"
    return os.environ.get(variable) or None, f"{variable} (environment)"


def _refusal(field: str, value: object, reason: str, remedy: str) -> pytest.UsageError:
    return pytest.UsageError(str(InputError(field, value, reason, remedy)))


def _path_of(config: pytest.Config, name: str) -> Path | None:
    text, field = _found(config, name)
    return _path(config.invocation_params.dir, field, text) if text else None


def _history(config: pytest.Config) -> str | None:
    """A database's URL as it is; a file's path made absolute."""
    text = _value(config, "history")
    return text if text is None or "://" in text else str(_path_of(config, "history"))


def _switch(config: pytest.Config, name: str) -> bool:
    if config.getoption(f"--llmbench-{name}") or config.getini(f"llmbench_{key(name)}"):
        return True
    variable = f"LLMBENCH_{key(name).upper()}"
    word = os.environ.get(variable, "").strip().lower()
    if word not in {"", "0", "1", "false", "true", "no", "yes", "off", "on"}:
        raise _refusal(variable, word, "neither yes nor no", f"{variable}=1, or unset it")
    return word in {"1", "true", "yes", "on"}


def _count(config: pytest.Config, name: str) -> int | None:
    text, field = _found(config, name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,3}", text.strip()) or int(text) > MOST_AGAIN:
        raise _refusal(field, text, f"not a whole number from 0 to {MOST_AGAIN}", f"--llmbench-{name} 4")
    return int(text)


def _against(config: pytest.Config) -> _Against:
    """The direct comparison; refuses its flags where there is none."""
    against = _path_of(config, "against")
    margin = _number(config, "margin", 50.0, "a percentage above 0 (and at most 50)", "2")
    pairs = _number(config, "pairs", MOST_PAIRS, f"a whole number from 1 to {MOST_PAIRS}", "30", whole=True)
    budget = _number(config, "budget", _MOST_SECONDS / 60, "a number of minutes above 0 (a week at most)", "60")
    if against is None:
        for name, value in (("margin", margin), ("pairs", pairs), ("budget", budget)):
            if value is not None:
                text, field = _found(config, name)
                raise _refusal(field, text, "there is no --llmbench-against", "name the old card too")
    return {
        "against": against,
        "margin": None if margin is None else margin / 100,
        "pairs": None if pairs is None else int(pairs),
        "budget_s": None if budget is None else 60 * budget,
    }


def _number(
    config: pytest.Config, name: str, most: float, needed: str, example: str, *, whole: bool = False
) -> float | None:
    text, field = _found(config, name)
    if text is None:
        return None
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 < number <= most or (whole and number != int(number)):
        raise _refusal(field, text, f"not {needed}", f"--llmbench-{name} {example}")
    return number


def _reason(config: pytest.Config, name: str) -> str | None:
    text: str | None = config.getoption(f"--llmbench-{name}")
    if text is not None and not text.strip():
        raise _refusal(
            f"--llmbench-{name}", text, "says no reason", f'--llmbench-{name} "new driver: 2 % slower, and we need it"'
        )
    return text.strip() if text else None


def _name(config: pytest.Config, option: str) -> str | None:
    name, field = _found(config, option)
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        remedy = "use letters, digits, '.', '_' and '-' (100 at most), starting with a letter or digit"
        raise _refusal(field, name, "not a usable name", remedy)
    return name


def _numbers(config: pytest.Config, name: str) -> tuple[int, ...] | None:
    text = config.getoption(f"--llmbench-{name}")
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(re.fullmatch("[0-9]{1,9}", word) and int(word) > 0 for word in words):
        remedy = f"--llmbench-{name} {_EXAMPLES[name]}"
        raise _refusal(f"--llmbench-{name}", text, "not a list of whole numbers above 0 (of 9 digits at most)", remedy)
    return tuple(map(int, words))


def _run(config: pytest.Config, name: str) -> str | None:
    """A session's id as it is, or the folder of a run."""
    given: str | None = config.getoption(f"--llmbench-{name}")
    if given is None:
        return None
    if not given.strip():
        raise _refusal(f"--llmbench-{name}", given, "names no run", "name a session's id or a run's folder")
    path = config.invocation_params.dir / os.path.expanduser(given)  # noqa: PTH111 - pathlib raises where there is no such user
    return str(path) if path.is_dir() else given


def _runs(config: pytest.Config) -> int | None:
    text = config.getoption("--llmbench-runs")
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", text.strip()) or int(text) < 1:
        reason = "one whole number above 0 is needed; it is for all cells"
        raise _refusal("--llmbench-runs", text, reason, "--llmbench-runs 5")
    return int(text)


def _parts(config: pytest.Config) -> tuple[str, ...] | None:
    text, field = _found(config, "parts")
    if text is None:
        return None
    parts = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not parts:
        raise _refusal(field, text, "names no part", "--llmbench-parts decode,prefill")
    return parts


def _seconds(config: pytest.Config, name: str, default: float) -> float:
    text, field = _found(config, name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_SECONDS:
        reason = f"not a number of seconds above 0 (and at most {_MOST_SECONDS}, which is a week)"
        raise _refusal(field, text, reason, f"--llmbench-{name} {default:.0f}")
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
            remedy = "5%, or decode_tok_s:5% for one figure"
            raise _refusal("--llmbench-compare-fail", text, "not a percentage of 0 or more", remedy)
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
            raise _refusal("--llmbench-var", text, "not NAME=VALUE", "--llmbench-var 'GPU1-UUID=GPU-1234'")
        variables[name.strip("<>")] = value
    return variables
