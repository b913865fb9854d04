"""Whole sessions of pytest against a paced server: what a user types, and what they see."""

from __future__ import annotations

import copy
import datetime as dt
import itertools
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alembic.command  # noqa: F401 - before a session in this process would load it and throw it away again
import psutil
import pytest

import pytest_llmbench.session  # noqa: F401 - likewise
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REPOSITORY = Path(__file__).parents[2]
SUITES = REPOSITORY / "bench_suites"
FILES = ("test_decode.py", "test_prefill.py")

# A test machine is busy: the client's and the paced server's clocks may part by more than on a quiet one.
LOOSE = {"decode_within": 5.0, "ttft_above_ms": 20_000}


# The engine: a paced server, paced by the card's environment and, over it, by a file that is no part of any identity.
ENGINE = """\
import json, os, sys
from pathlib import Path

sys.path.insert(0, {repository!r})
os.environ["LLMBENCH_PACED"] = json.dumps(
    json.loads(os.environ.get("LLMBENCH_PACED", "{{}}")) | json.loads(Path(__file__).with_name("pace.json").read_text())
)
from pytest_llmbench.paced.__main__ import main

sys.exit(main())
"""
# Slow enough for the noise of a busy machine to be small beside it.
CALM = {"tok_s": 200, "ttft_ms": 100}


class Bench:
    """A folder with suites, a paced server as the engine, and cards for it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.path = pytester, pytester.path
        for name in FILES:
            shutil.copy(SUITES / name, self.path / name)
        self.engine = self.path / "paced-engine"
        self.engine.write_text(f"#!{sys.executable}\n{ENGINE.format(repository=str(REPOSITORY))}", encoding="utf-8")
        self.becomes()
        self.engine.chmod(0o755)
        (self.path / "tiny.gguf").write_bytes(b"GGUF" + bytes(60))

    def card(self, name: str = "card", *, pace: dict[str, Any] | None = None, **changes: Any) -> Path:
        """Write a card of a small, fast plan; changes replace whole sections."""
        content: dict[str, Any] = {
            "llmbench_card": 1,
            "id": name,
            "title": f"Paced {name}",
            "hardware": {"gpus": []},
            "model": {"name": "Tiny", "file": {"path": str(self.path / "tiny.gguf")}},
            "engine": {"kind": "llama-server", "binary": {"path": str(self.engine)}},
            "server": {
                "args": ["-m", "tiny.gguf", "-c", "8192", "-np", "1"],
                "env": {"LLMBENCH_PACED": json.dumps({"tok_s": 1000, "ttft_ms": 5, **(pace or {})})},
            },
            "sampling": {"values": {"temperature": 0.5}, "seed": 7},
            "plan": {
                "parts": ["decode", "prefill"],
                "decode": {"runs": 2, "max_tokens": 32},
                "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
            },
            "client_check": LOOSE,
            "validity": {"client_lag_ms": 5000},
            "watch": {"guard": False},
        }
        path = self.path / f"{name}.json"
        path.write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return path

    def becomes(self, **knobs: Any) -> None:
        """Pace the engine otherwise from its next start on, with the same card: the setup got slower, not another one."""
        (self.path / "pace.json").write_text(json.dumps(knobs), encoding="utf-8")

    def tamper(self, code: str) -> None:
        """Let the engine run a line before anything else; it may change ``sys.argv``."""
        text = self.engine.read_text(encoding="utf-8")
        self.engine.write_text(
            text.replace("import json, os, sys\n", f"import json, os, sys\n{code}\n", 1), encoding="utf-8"
        )

    def small_card(self, name: str = "card", *, pace: dict[str, Any] | None = None, **changes: Any) -> Path:
        """A card of two cells, decode[code] and prefill[512], on a server whose noise is small beside its times."""
        plan = {
            "parts": ["decode", "prefill"],
            "decode": {"prompts": ["code"], "runs": 2, "max_tokens": 24},
            "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
        }
        return self.card(name, pace=CALM | (pace or {}), **{"plan": plan, **changes})

    def run(self, *args: str, card: Path | None = None, paths: tuple[str, ...] = FILES) -> pytest.RunResult:
        """Run pytest as a user does, in a process of its own."""
        setup = ["--setup", str(card)] if card is not None else []
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *paths, *setup, *args, timeout=120)

    def run_here(self, *args: str, card: Path | None = None, paths: tuple[str, ...] = FILES) -> pytest.RunResult:
        """Run pytest in this process: where no server comes up. It saves a start of Python and its imports."""
        setup = ["--setup", str(card)] if card is not None else []
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *paths, *setup, *args)

    def llmbench(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``llmbench`` as a user does."""
        code = "import sys; from pytest_llmbench.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *args],
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    # ---- what sessions left ----

    @property
    def runs(self) -> list[Path]:
        """The folders of all sessions, oldest first."""
        return sorted((self.path / ".llmbench" / "runs").glob("*"))

    def last(self, card: str = "card") -> dict[str, Any]:
        """The last session's report of a card."""
        return dict(json.loads((self.runs[-1] / card / "report.json").read_text(encoding="utf-8")))

    def verdict(self) -> dict[str, Any]:
        """The last session's verdict file."""
        return dict(json.loads((self.runs[-1] / "verdict.json").read_text(encoding="utf-8")))

    def record(self, reports: Iterable[dict[str, Any]]) -> list[str]:
        """Put reports into the history as if their sessions had been made here; their ids."""
        with Store.open(self.path / ".llmbench") as store:
            made = []
            for report in reports:
                assert store.record(report, self.path / ".llmbench" / "runs" / report["session"] / report["card"]["id"])
                made.append(report["session"])
        return made

    def seed(
        self,
        report: dict[str, Any],
        n: int,
        *,
        rates_sd: float = 0.12,
        latencies_sd: float = 0.25,
        until_days_ago: int = 10,
        engine: str | None = None,
    ) -> list[str]:
        """Record ``n`` altered copies of a real report, a day apart, the last so many days ago; the sessions' ids.

        Medians and runs are spread around the report's own, by decode rates' and all other figures' standard deviation (of logs):
        prefill is made of a latency. engine: another version, for what changed since.
        """
        days = range(until_days_ago + n - 1, until_days_ago - 1, -1)
        return self.record(
            altered(report, day, rate=math.exp(one * rates_sd), latency=math.exp(other * latencies_sd), engine=engine)
            for day, one, other in zip(days, spread_evenly(n, 1), spread_evenly(n, 2), strict=True)
        )

    def report(self, card: str = "card") -> dict[str, Any]:
        """The only session's report of a card."""
        (found,) = (self.path / ".llmbench" / "runs").glob(f"*/{card}/report.json")
        return dict(json.loads(found.read_text(encoding="utf-8")))

    def servers(self) -> list[int]:
        """Processes that still run this folder's engine; a zombie has no command line any more."""
        return [p.pid for p in psutil.process_iter(["cmdline"]) if str(self.engine) in (p.info["cmdline"] or ())]


def spread_evenly(n: int, seed: int) -> list[float]:
    """n values of a standard normal spread with mean 0, in an order that only the seed decides."""
    values = [statistics.NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    random.Random(seed).shuffle(values)
    return values


_copies = itertools.count(1)


def altered(
    report: dict[str, Any],
    days_ago: float,
    *,
    rate: float = 1.0,
    latency: float = 1.0,
    engine: str | None = None,
    figures: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A copy of a report as another session, so many days ago. Decode rates and all other figures times a factor.

    figures: by figure name, fields to set in every cell that has it, and ``status`` for its cell.
    """
    one = copy.deepcopy(report)
    when = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
    one["session"] = f"{when:%Y%m%dT%H%M%S}-copy{next(_copies):03}"
    one["started"] = one["finished"] = when.isoformat(timespec="seconds")
    if engine is not None:
        one["environment"]["engine"]["version"] = engine
    for cell in one["cells"]:
        cell["sessions"] = [one["session"]]
        for figure in cell["figures"]:
            factor = rate if figure["name"] == "decode_tok_s" else latency
            figure["median"] = figure["median"] and figure["median"] * factor
            figure["values"] = [value * factor for value in figure["values"]]
            figure.update((figures or {}).get(figure["name"], {}))
    return one


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [event for event in found if event["event"] == name]


def kill_in_the_middle(
    bench: Bench,
    card: Path,
    after: int,
    of: str = "attempt",
    files: tuple[str, ...] = FILES,
    more: tuple[Path, ...] = (),
) -> Path:
    """Start a session that hangs, kill it with SIGKILL once so many events of a kind are in the card's journal.

    more: cards that it measures before.
    """

    def folders() -> list[Path]:
        return sorted((bench.path / ".llmbench" / "runs").glob(f"*/{card.stem}"))

    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files),
            *(word for one in (*more, card) for word in ("--setup", str(one))),
        ],
        cwd=bench.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if folders() and len(events(folders()[0], of)) >= after:
                break
            time.sleep(0.05)
        else:
            pytest.fail("the session never came so far")
    finally:
        child.kill()
        child.wait()
    (folder,) = folders()
    return folder


@pytest.fixture
def bench_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name in [n for n in os.environ if n.startswith("LLMBENCH_")]:
        monkeypatch.delenv(name)
    return Bench(pytester)


_FIRST: dict[str, Any] = {}


@pytest.fixture
def first_report(bench_folder: Bench) -> dict[str, Any]:
    """The report of one real session of the small card, made once in a test run; the folder has no session."""
    if not _FIRST:
        bench_folder.run(card=bench_folder.small_card()).assert_outcomes(passed=2)
        _FIRST.update(bench_folder.last())
        shutil.rmtree(bench_folder.path / ".llmbench")
    return copy.deepcopy(_FIRST)


@pytest.fixture
def make_card(bench_folder: Bench) -> Callable[..., Path]:
    return bench_folder.card
