"""What it takes to see an effect, from a history: the noise split, the table, "not on this machine", and too short a history."""

from __future__ import annotations

import json
import random
import statistics
from typing import TYPE_CHECKING, Any

import pytest
from documents import cell, document, figure

from pytest_llmbench.cli.main import main
from pytest_llmbench.gate import seen
from pytest_llmbench.gate.machine import Machine
from pytest_llmbench.gate.power import median_variance
from pytest_llmbench.history import durations
from pytest_llmbench.history.store import Store
from pytest_llmbench.records import Baseline

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("decode_tok_s", "prefill_tok_s", "ttft_ms", "words_s", "total_tok_s", "request_tok_s")


def attempts(seconds: float) -> list[dict[str, Any]]:
    """Three runs that start half a minute after the session, and last so long."""
    return [
        {
            "run": run, "error": None, "guard": "clean", "again": 0, "figures": [{"reasons": []}],
            "t_start_ns": run * 10**11, "t_end_ns": run * 10**11 + round(seconds * 1e9), "wall": "2026-01-02T03:04:35+00:00",
        }
        for run in (1, 2, 3)
    ]  # fmt: skip


def history(
    path: Path, sessions: int, *, machine: float = 0.0, own: float = 0.01, companions: tuple[str, ...] = ()
) -> None:
    """Sessions of six figures in one cell, that move together by ``machine`` and on their own by ``own``."""
    noise = random.Random(3)
    with Store.open(path) as store:
        for number in range(sessions):
            together = noise.gauss(0, machine)
            figures = []
            for name in NAMES:
                start = noise.gauss(0, own)
                runs = [100 * (1 + together + start + noise.gauss(0, own)) for _ in range(3)]
                median = statistics.median(runs)
                if name.endswith("_ms"):
                    runs, median = [10_000 / one for one in runs], 10_000 / median
                figures.append(figure(name, median, values=runs, verdict=None if name in companions else "ok"))
            made = document(number)
            made["started"], made["finished"] = "2026-01-02T03:04:05+00:00", "2026-01-02T03:09:05+00:00"
            day = f"2026-02-{number + 1:02}"
            made["started"], made["finished"] = f"{day}T03:04:05+00:00", f"{day}T03:09:05+00:00"
            tries = attempts(12.0)
            for one in tries:
                one["wall"] = f"{day}T03:04:35+00:00"
            made["cells"] = [cell("decode[code]", figures, attempts=tries, sessions=[made["session"]])]
            assert store.record(made, path / "runs" / made["session"] / "card")


def test_a_table_with_the_cheapest_first_and_its_assumptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history(tmp_path, 10)
    assert main(["resolve", "card", "--effect", "6%", "--storage", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (
        "found in 95% of sessions; any of 6 figures raises a false alarm in at most 1.0% of unchanged sessions" in said
    )
    rows = [line.split() for line in said.splitlines() if line.startswith("decode[code]  decode_tok_s")]
    assert 1 <= len(rows) <= 3
    minutes = [float(row[-3]) for row in rows]
    assert minutes == sorted(minutes)
    # Half a minute before the first run, and 12 s a run: nothing costs less than two runs.
    assert minutes[0] >= 0.5 + 2 * 0.2 - 0.05
    assert "assumed: normal noise" in said
    assert "the machine's part: from 6 figures over 10 sessions" in said


def test_not_on_this_machine_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path, 12, machine=0.04, own=0.004)
    assert main(["resolve", "card", "--effect", "3%", "--figure", "decode_tok_s", "--storage", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "decode[code] decode_tok_s: not on this machine: 3.0% in 95% of sessions" in said
    assert "no number of runs takes that out" in said
    assert "prefill_tok_s" not in said


def test_a_short_history_names_the_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path, 2)
    card = tmp_path / "my.json"
    card.write_text('{"id": "card"}')
    assert main(["resolve", str(card), "--effect", "3%", "--cell", "decode[code]", "--storage", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "too short a history: 2 sessions, 5 are needed" in said
    assert f"a trial of 3 sessions gives it, half an hour apart: pytest bench_suites/ --setup {card}, 3 times" in said


def test_companions_are_no_figures_that_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path, 10, companions=("words_s",))
    assert main(["resolve", "card", "--effect", "6%", "--storage", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "any of 5 figures raises" in said
    assert "words_s" not in said


def test_json_has_every_option_and_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path, 10)
    assert main(["resolve", "card", "--effect", "6", "--json", "--figure", "ttft_ms", "--storage", str(tmp_path)]) == 0
    (one,) = json.loads(capsys.readouterr().out)["figures"]
    assert one["figure"] == "ttft_ms"
    assert all(option["found"] >= 0.95 for option in one["options"])
    assert one["noise"]["run"] == pytest.approx(0.01, rel=0.6)
    assert one["noise"]["run_minutes"] == pytest.approx(0.2)
    assert one["noise"]["start_minutes"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["card", "--effect", "0%"], "--effect = '0%': not a percentage"),
        (["card", "--effect", "x"], "not a percentage"),
        (["other", "--effect", "3%"], "measure it first"),
        (["card", "--effect", "1e-9%"], "--effect = '1e-9%': below 0.1%, which nothing here can show"),
        (["card", "--effect", "3%", "--found", "100%"], "remedy: --found 95%"),
        (["card", "--effect", "3%", "--alarms", "x"], "remedy: --alarms 1%"),
        (
            ["card", "--effect", "3%", "--cell", "nope"],
            "--cell = 'nope': no judged cell of this card (there are: decode[code])",
        ),
        (
            ["card", "--effect", "3%", "--figure", "speed"],
            "--figure = 'speed': not judged (there: decode[code] decode_tok_s",
        ),
    ],
)
def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    history(tmp_path, 1)
    assert main(["resolve", *args, "--storage", str(tmp_path)]) == 4
    assert said in capsys.readouterr().err


# ---- the noise ----


def test_the_split_of_a_figures_noise_adds_up_to_the_gates_sigma() -> None:
    noise = random.Random(1)
    sessions = []
    for _ in range(40):
        level = noise.gauss(0, 0.02)
        sessions.append(([100 * (1 + level + noise.gauss(0, 0.01)) for _ in range(3)], 6.0, 30.0))
    baseline = Baseline(tuple(statistics.median(runs) for runs, _, _ in sessions), ())
    found = seen.figure(baseline, "higher", sessions, Machine(0.01, 30, 40, 6))
    one = found.noise
    assert one.run == pytest.approx(0.01, rel=0.15)
    assert one.machine == pytest.approx(0.01)
    assert one.sigma(3) == pytest.approx(found.sigma)
    assert one.start**2 + one.run**2 * median_variance(3) + one.machine**2 == pytest.approx(found.sigma**2)
    assert (one.start_minutes, one.run_minutes) == (0.5, 0.1)
    assert found.assumed == ()


def test_what_is_not_known_is_said() -> None:
    baseline = Baseline((100.0, 101.0, 99.0, 100.5, 99.5), ())
    found = seen.figure(baseline, "higher", [([100.0], None, None)] * 5, None)
    assert found.noise.run == 0.0
    assert len(found.assumed) == 3
    with pytest.raises(ValueError, match="without sessions"):
        seen.figure(baseline, "higher", [], None)


def test_a_fresh_server_costs_what_lies_between() -> None:
    def one(run: int, again: int, start: float, end: float) -> dict[str, Any]:
        return {
            "run": run,
            "again": again,
            "error": None,
            "t_start_ns": round(start * 1e9),
            "t_end_ns": round(end * 1e9),
        }

    made = [one(1, 0, 10, 12), one(2, 0, 12, 14), one(0, 1, 20, 22), one(1, 1, 22, 24), one(1, 2, 30, 32)]
    assert durations.run_s(made) == 2.0
    assert durations.start_s(made, {"cells": [], "started": "2026-01-02T03:04:05+00:00"}) == 7.0
    assert durations.run_s([]) is None
    assert durations.start_s([], {"cells": [], "started": "2026-01-02T03:04:05+00:00"}) is None
