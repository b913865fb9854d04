"""Every published figure of a whole run follows from its raw records and its contract."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from bench_folder import SUITES

from pytest_llmbench import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench_folder import Bench

ALL = tuple(f"test_{part}.py" for part in ("decode", "prefill", "concurrency", "context", "long_answer", "fit"))


@pytest.fixture
def run(bench_folder: Bench) -> Path:
    for name in ALL:
        shutil.copy(SUITES / name, bench_folder.path / name)
    card = bench_folder.card(
        plan={
            "parts": ["decode", "prefill", "concurrency", "context", "long_answer", "fit"],
            "decode": {"runs": 2, "max_tokens": 300},
            "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
            "concurrency": {"levels": [1, 3], "rounds": 2, "max_tokens": 16},
            "context": {"depths": [4096], "runs": 1, "max_tokens": 16},
            "fit": {"sizes": [1024]},
        },
        server={
            "args": ["-m", "tiny.gguf", "-c", "16384", "-np", "2"],
            # Request 4 is invalid at first, so that there is an attempt which must not count.
            "env": {
                "LLMBENCH_PACED": json.dumps(
                    {"tok_s": 1000, "ttft_ms": 5, "stop_after": 310, "requests": {"4": {"cache_n": 3}}}
                )
            },
        },
    )
    bench_folder.run(card=card, paths=ALL).assert_outcomes(passed=9)
    (folder,) = (bench_folder.path / ".llmbench" / "runs").glob("*/card")
    return folder


def test_a_whole_run_follows_from_raw(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = verify.check(run)
    assert [one for one in checks if not one.matches] == []
    report = json.loads((run / "report.json").read_text())
    values = sum(len(figure["values"]) for cell in report["cells"] for figure in cell["figures"])
    assert sum(len(one.published) for one in checks if one.figure.endswith(" values")) == values > 50
    assert {c["id"]: c["status"] for c in report["cells"]} == {i: r.status for i, r in verify.recompute(run).items()}
    assert verify.main([str(run)]) == 0
    assert "published values follow from raw" in capsys.readouterr().out
    _one_figure_bent(run, capsys)
    _something_left_out(run)
    _one_record_bent(run)


def _one_figure_bent(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A published value that raw does not bear out is named."""
    path = run / "report.json"
    text = path.read_text()
    report = json.loads(text)
    report["cells"][0]["figures"][0]["median"] *= 1.001
    path.write_text(json.dumps(report))
    assert verify.main([str(run)]) == 1
    assert "decode[code] decode_tok_s median: published" in capsys.readouterr().out
    path.write_text(text)


def _something_left_out(run: Path) -> None:
    """A cell, a figure or a status that was taken away or painted over."""
    path = run / "report.json"
    text = path.read_text()

    def found(change: Callable[[dict[str, Any]], object]) -> set[tuple[str, str]]:
        report = json.loads(text)
        change(report)
        path.write_text(json.dumps(report))
        return {(one.cell, one.figure) for one in verify.check(run) if not one.matches}

    assert ("report", "cells") in found(lambda r: r["cells"].pop(1))
    assert found(lambda r: r["cells"][0]["figures"].pop(0)) == {("decode[code]", "decode_tok_s median")}
    assert found(lambda r: r["cells"][0].update(status="failed")) == {("decode[code]", "status")}
    assert found(lambda r: r["headline"].update(seconds_for_500_words=0.1)) == {("headline", "seconds_for_500_words")}
    path.write_text(text)


def _one_record_bent(run: Path) -> None:
    """And the other way round: raw that was changed does not bear the report out."""
    path = run / "raw" / "fit-1024.jsonl"
    record = json.loads(path.read_text())
    record["facts"]["load_s"] += 1
    path.write_text(json.dumps(record) + "\n")
    assert [one.figure for one in verify.check(run) if not one.matches] == ["load_s median", "load_s values"]


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(tmp_path)]) == 2
    assert "there is no report.json in it" in capsys.readouterr().err
