"""The control in whole sessions: beside a setup, in the history, and in the verdict."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import alembic.command  # noqa: F401 - before a session in this process would load it and throw it away again
import jsonschema
import pytest
from bench_folder import SUITES

from pytest_llmbench import verify
from pytest_llmbench.contract import cell_from_json
from pytest_llmbench.control_gate import RETRY_EVERY
from pytest_llmbench.history import keys
from pytest_llmbench.history.store import Store
from pytest_llmbench.journal import read_lines
from pytest_llmbench.measure.validity import Bounds
from pytest_llmbench.outcomes.file import packaged_schema as verdict_schema
from pytest_llmbench.report.document import packaged_schema as report_schema

if TYPE_CHECKING:
    from pathlib import Path

    from bench_folder import Bench

DECODE = ("test_decode.py",)
# Slow enough that what a busy test machine adds is small beside it.
PACE = {"tok_s": 200, "ttft_ms": 100}
TURN = {"parts": ["context"], "context": {"depths": [2304], "prompts": ["code"], "runs": 1, "max_tokens": 32}}
ONE_CELL = {"parts": ["decode"], "decode": {"prompts": ["code"], "runs": 2, "max_tokens": 32}}
FAST = 1.5
"""History was so much faster: far beyond what a busy machine does to a paced server."""


def cards(bench: Bench, plan: dict[str, Any] | None = None, **changes: Any) -> tuple[Path, Path]:
    return bench.card(pace=PACE, plan=plan or ONE_CELL, **changes), bench.card("control", pace=PACE, plan=TURN)


def folder(bench: Bench) -> Path:
    """Of the only session."""
    (found,) = (bench.path / ".llmbench" / "runs").glob("*/card")
    return found


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def events(path: Path, name: str) -> list[dict[str, Any]]:
    return [one for one in read_lines(path / "journal.jsonl") if one["event"] == name]


def altered(document: dict[str, Any], nth: int, factor: float, beside: float | None) -> dict[str, Any]:
    """The report as of a session some days earlier, on a setup that was ``factor`` times as fast."""
    new = copy.deepcopy(document)
    new["session"] = f"earlier-{nth:02}"
    back = timedelta(days=100 - nth)
    for name in ("started", "finished"):
        new[name] = (datetime.fromisoformat(document[name]) - back).isoformat()
    for cell in new["cells"]:
        cell["sessions"] = [new["session"]]
        for figure in cell["figures"]:
            by = factor if figure["name"] != "ttft_ms" else 1 / factor
            figure["median"] = figure["median"] and figure["median"] * by
            figure["verdict"] = figure["verdict"] and "ok"
            control = figure.get("control")
            if beside is None:
                figure["control"] = None
            elif control:
                control["median"] *= beside if figure["name"] != "ttft_ms" else 1 / beside
    return new


def seed(bench: Bench, *, setup: float = 1.0, control: float = 1.0, own: float = 0.02, sessions: int = 12) -> None:
    """Earlier sessions made of the only one: the machine moves both by 6 %, and each moves by ``own`` alone."""
    here = folder(bench)
    report, turns = read(here / "report.json"), read(here / "control" / "report.json")
    shutil.rmtree(bench.path / ".llmbench")
    chance = random.Random(6)
    with Store.open(bench.path / ".llmbench") as store:
        for nth in range(sessions):
            machine = 1 + chance.gauss(0, 0.06)
            mine, other = (machine * (1 + chance.gauss(0, own)) for _ in range(2))
            assert store.record(altered(report, nth, setup * mine, control * other), here)
            assert store.record(altered(turns, nth, control * other, None), here / "control")


@pytest.fixture
def measured(bench_folder: Bench) -> tuple[Bench, Path, Path]:
    """A first session with a control."""
    card, control = cards(bench_folder)
    done = bench_folder.run("--llmbench-control", str(control), card=card, paths=DECODE)
    assert done.ret == 0, done.stdout.str()
    return bench_folder, card, control


def test_turns_are_taken_one_after_the_other_and_every_number_follows_from_raw(
    measured: tuple[Bench, Path, Path],
) -> None:
    bench, _, _ = measured
    here = folder(bench)
    report, verdict = read(here / "report.json"), read(here.parent / "verdict.json")
    jsonschema.validate(report, report_schema())
    jsonschema.validate(verdict, verdict_schema())
    (cell,) = report["cells"]
    runs = [one for one in cell["attempts"] if one["run"] > 0]
    assert len(runs) == 2
    turns = read(here / "control" / "report.json")
    jsonschema.validate(turns, report_schema())
    assert turns["complete"]
    # Never at the same time as a measured run: all attempts of both, in time, do not overlap.
    all_of = [*cell["attempts"], *turns["cells"][0]["attempts"]]
    times = sorted((one["t_start_ns"], one["t_end_ns"]) for one in all_of)
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    # The control's figures of each attempt are those of its raw record.
    contract = read(here / "control" / "contract.json")
    (spec,) = map(cell_from_json, contract["cells"])
    raw = read_lines(here / "control" / "raw" / "ctx-2304-code.jsonl")
    made = {one.request_ids[0]: one for one in verify.attempts_of(raw, spec, Bounds(**contract["validity"]))}
    for one in runs:
        seen = one["details"]["control"]
        figures = {figure.name: figure.value for figure in made[seen["attempt"]].figures}
        assert {name: seen[name] for name in ("decode_tok_s", "prefill_tok_s", "ttft_ms")}.items() <= figures.items()
    (decode,) = (f for f in cell["figures"] if f["name"] == "decode_tok_s")
    values = [one["details"]["control"]["decode_tok_s"] for one in runs]
    assert decode["control"]["median"] == pytest.approx(sum(values) / 2)
    for run in (here, here / "control"):
        assert all(check.matches for check in verify.check(run))
    # On trial it changes nothing, and says what it cost.
    (entry,) = verdict["cards"]
    assert entry["control"]["role"] == "trial"
    assert entry["control"]["turns"] == 2
    assert entry["control"]["minutes"] > 0
    assert bench.servers() == []


def test_the_history_keeps_pairs_and_the_controls_own_session(measured: tuple[Bench, Path, Path]) -> None:
    bench, _, _ = measured
    here = folder(bench)
    report, turns = read(here / "report.json"), read(here / "control" / "report.json")
    place = bench.path / ".llmbench"

    def pair(store: Store) -> Any:
        identity = report["contract"]["identity"]
        (one,) = store.outcomes(keys.cell_key(identity, "decode[code]"), keys.machine_key(identity), "decode_tok_s")
        own = store.baselines_of(turns["contract"]["identity"])["ctx[2304-code]", "decode_tok_s"]
        return one.control, one.control_key, own.values

    (decode,) = (f for f in report["cells"][0]["figures"] if f["name"] == "decode_tok_s")
    (level,) = (f for f in turns["cells"][0]["figures"] if f["name"] == "decode_tok_s")
    expected = decode["control"]["median"], decode["control"]["key"], (level["median"],)
    with Store.open(place) as store:
        assert pair(store) == expected
        store.export_to(bench.path / "all.jsonl")
        store.rebuild()
        assert pair(store) == expected
    with Store.open(bench.path / "other") as store:
        store.import_from(bench.path / "all.jsonl")
        assert pair(store) == expected


def test_a_slower_machine_is_the_machine_and_not_the_setup(measured: tuple[Bench, Path, Path]) -> None:
    bench, card, control = measured
    seed(bench, setup=FAST, control=FAST)
    done = bench.run("--llmbench-remeasure", "3", "--llmbench-control", str(control), card=card, paths=DECODE)
    said = done.stdout.str()
    assert done.ret == 13, said
    assert "decode[code] machine changed" in said
    assert "regressed" not in said
    assert "machine: control slower (-" in said
    assert re.search(r"changed since the baseline: (nothing that is recorded|CPU )", said)
    verdict = read(next((bench.path / ".llmbench" / "runs").glob("*/verdict.json")))
    assert verdict["category"] == "machine"
    (figure,) = (f for f in verdict["cards"][0]["cells"][0]["figures"] if f["name"] == "decode_tok_s")
    assert (figure["verdict"], figure["failed"]) == ("machine changed", True)
    assert figure["control"]["word"] == "regressed"
    assert figure["control"]["change"] < -0.2
    assert figure["control"]["residual"] < figure["control"]["raw"]


def test_a_slower_setup_on_the_same_machine_is_a_regression(measured: tuple[Bench, Path, Path]) -> None:
    bench, card, control = measured
    seed(bench, setup=FAST)
    done = bench.run("--llmbench-remeasure", "3", "--llmbench-control", str(control), card=card, paths=DECODE)
    said = done.stdout.str()
    assert done.ret == 10, said
    assert "decode[code] regressed" in said
    assert "machine changed" not in said
    assert "machine: control " in said
    assert "with control; resolves changes of" in said
    assert "% with the control, >= " in said
    report = read(folder(bench) / "report.json")
    (decode,) = (f for f in report["cells"][0]["figures"] if f["name"] == "decode_tok_s")
    assert decode["control"]["used"]
    assert decode["control"]["beta"] == 1
    assert len(decode["control"]["again"]) == len(decode["again"]) == 3
    assert decode["resolves"] < decode["control"]["resolves_without"]
    assert all(check.matches for check in verify.check(folder(bench)))
    assert all(check.matches for check in verify.check(folder(bench) / "control"))


def test_a_control_that_does_not_pay_rests_and_is_tried_again(measured: tuple[Bench, Path, Path]) -> None:
    bench, card, control = measured
    report = read(folder(bench) / "report.json")
    seed(bench, own=0.3)  # what both share is nothing beside what each does alone
    done = bench.run("--llmbench-remeasure", "3", "--llmbench-control", str(control), card=card, paths=DECODE)
    said = done.stdout.str()
    assert "no control: residual" in said
    assert f"it rests for {RETRY_EVERY - 1} more sessions" in said
    assert not (folder(bench) / "control").exists()
    shutil.rmtree(bench.path / ".llmbench" / "runs")
    with Store.open(bench.path / ".llmbench") as store:
        for nth in range(40, 40 + RETRY_EVERY - 1):
            assert store.record(altered(report, nth, 1 + nth / 100, None), bench.path / "gone")
    done = bench.run("--llmbench-remeasure", "3", "--llmbench-control", str(control), card=card, paths=DECODE)
    assert "tried once more (2 turns" in done.stdout.str() or "turns, " in done.stdout.str()
    assert (folder(bench) / "control" / "report.json").exists()


def test_a_control_that_dies_is_said_and_the_session_goes_on(bench_folder: Bench) -> None:
    card, _ = cards(bench_folder)
    control = bench_folder.card("control", pace={**PACE, "die_at_token": 3}, plan=TURN)
    done = bench_folder.run("--llmbench-control", str(control), card=card, paths=DECODE)
    said = done.stdout.str()
    assert done.ret == 0, said
    assert "the control is lost, the session goes on without it" in said
    report = read(folder(bench_folder) / "report.json")
    assert report["complete"]
    assert report["control"]["lost"]
    assert all(figure["control"]["median"] is None for figure in report["cells"][0]["figures"] if figure["control"])
    assert bench_folder.servers() == []


def test_a_memory_test_finds_the_control_gone(bench_folder: Bench) -> None:
    plan = ONE_CELL | {"parts": ["decode", "fit"], "fit": {"sizes": [4096], "max_tokens": 16}}
    card, control = cards(bench_folder, plan)

    shutil.copy(SUITES / "test_fit.py", bench_folder.path / "test_fit.py")
    done = bench_folder.run("--llmbench-control", str(control), card=card, paths=("test_decode.py", "test_fit.py"))
    assert done.ret == 0, done.stdout.str()
    here = folder(bench_folder)
    (stopped,) = events(here / "control", "server stopped")
    assert "memory" in stopped["reason"]
    second = events(here, "server starting")[1]
    assert stopped["wall"] <= second["wall"]
    report = read(here / "report.json")
    assert [cell["status"] for cell in report["cells"]] == ["measured", "measured"]
    assert all("control" not in one["details"] for one in report["cells"][1]["attempts"])


def test_a_control_without_room_is_measured_between_servers(bench_folder: Bench) -> None:
    bench_folder.card("control", pace=PACE, plan=TURN)
    card, _ = cards(bench_folder, control={"card": "control.json", "resident": False})
    done = bench_folder.run(card=card, paths=DECODE)  # the card names it
    assert done.ret == 0, done.stdout.str()
    here = folder(bench_folder)
    (stopped,) = events(here / "control", "server stopped")
    (ready,) = events(here, "server starting")
    assert stopped["wall"] <= ready["wall"]
    report = read(here / "report.json")
    found = [one["details"]["control"] for one in report["cells"][0]["attempts"] if one["run"]]
    assert len(found) == 2
    assert len(found[0]["attempts"]) == 3
    assert found[0]["decode_tok_s"] > 0
    off = bench_folder.run("--llmbench-control", "off", card=card, paths=DECODE)
    assert off.ret == 0
    assert len(list(here.parents[1].glob("*/card"))) == 2
    assert list(here.parents[1].glob("*/card/control")) == [here / "control"]


def test_a_resumed_session_keeps_what_the_control_gave(bench_folder: Bench) -> None:
    plan = ONE_CELL | {"decode": {"prompts": ["code", "prose"], "runs": 1, "max_tokens": 32}}
    card, control = cards(bench_folder, plan)
    (bench_folder.path / "conftest.py").write_text(
        "import os\ndef pytest_runtest_setup(item):\n"
        "    if 'prose' in item.name and not os.path.exists('resumed'):\n        raise KeyboardInterrupt\n"
    )
    first = bench_folder.run("--llmbench-control", str(control), card=card, paths=DECODE)
    assert first.ret == pytest.ExitCode.INTERRUPTED
    (bench_folder.path / "resumed").touch()
    second = bench_folder.run("--llmbench-resume", "--llmbench-control", str(control), card=card, paths=DECODE)
    assert second.ret == 0, second.stdout.str()
    last = max((bench_folder.path / ".llmbench" / "runs").glob("*/card"))
    report = read(last / "report.json")
    assert report["complete"]
    for cell in report["cells"]:
        (decode,) = (f for f in cell["figures"] if f["name"] == "decode_tok_s")
        assert decode["control"]["median"] > 0
    assert report["control"]["turns"] == 1
    found = [check for check in verify.check(last) if "the control's" in check.figure]
    assert len(found) == 6
    assert all(check.matches for check in found)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"parts": ["decode"]}, "no cell of this card gives decode_tok_s, prefill_tok_s, ttft_ms in one request"),
        (TURN, "is the setup's own id"),
    ],
)
def test_a_control_that_cannot_be_one_is_refused(bench_folder: Bench, plan: dict[str, Any], why: str) -> None:
    card, _ = cards(bench_folder)
    control = bench_folder.card("card" if plan is TURN else "control", pace=PACE, plan=plan)
    if plan is TURN:
        control = control.rename(control.with_name("other.json"))
        card, _ = cards(bench_folder)
    done = bench_folder.run_here("--llmbench-control", str(control), card=card, paths=DECODE)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert why in done.stderr.str()
