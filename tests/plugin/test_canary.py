"""A slowdown planted in a whole session: through the gate, into the history, and out of everything that it must not touch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from seeded import llmbench, seed

from pytest_llmbench.history import keys
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from bench_folder import Bench

DECODE = "test_decode.py"
# Long enough that a busy test machine is small beside it.
PACE = {"tok_s": 200, "ttft_ms": 60}


def seeded_session(bench_folder: Bench, **more: Any) -> dict[str, Any]:
    """A card that is judged: one real session and the copies before it."""
    bench_folder.run(card=bench_folder.card(pace=PACE), paths=(DECODE,))
    report = bench_folder.report()
    seed(bench_folder, report, **more)
    return report


def last_report(bench_folder: Bench) -> dict[str, Any]:
    found = sorted(
        (bench_folder.path / ".llmbench" / "runs").glob("*/card/report.json"), key=lambda p: p.stat().st_mtime
    )
    return dict(json.loads(found[-1].read_text(encoding="utf-8")))


def test_a_planted_slowdown_is_caught_and_kept_apart(bench_folder: Bench) -> None:
    report = seeded_session(bench_folder)
    identity = report["contract"]["identity"]
    machine, cell = keys.machine_key(identity), keys.cell_key(identity, "decode[code]")
    with Store.open(bench_folder.path / ".llmbench") as store:
        before = store.baselines_of(identity), store.outcomes(cell, machine, "decode_tok_s"), len(store.sessions())
    done = llmbench(
        bench_folder,
        "canary",
        "--setup",
        "card.json",
        "--way",
        "pace",
        "--slow",
        "40%",
        DECODE,
        "-k",
        "code]",
        "-p",
        "no:cacheprovider",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "this session was slowed on purpose: 40 % slower (pace)" in done.stdout
    assert "40 % slower (pace) was caught" in done.stdout
    planted = last_report(bench_folder)
    assert planted["canary"] == {"way": "pace", "size": 0.4, "share": 0.4, "words": "40 % slower (pace)", "stopped": []}
    assert planted["contract"]["canary"] == "40 % slower (pace)"
    figures = {f["name"]: f for c in planted["cells"] for f in c["figures"] if c["id"] == "decode[code]"}
    assert figures["decode_tok_s"]["verdict"] == "regressed"
    assert figures["decode_tok_s"]["change"] == pytest.approx(-0.4, abs=0.15)
    with Store.open(bench_folder.path / ".llmbench") as store:
        assert before == (
            store.baselines_of(identity), store.outcomes(cell, machine, "decode_tok_s"), len(store.sessions()),
        )  # fmt: skip
        (kept,) = store.canaries("card", machine)
        assert kept.session == planted["session"]
        day = kept.started[:10]
    # The next ordinary session says so, in all three places.
    ordinary = bench_folder.run(card=bench_folder.path / "card.json", paths=(DECODE,))
    line = f"canary: 40 % slower (pace) caught on {day}"
    ordinary.stdout.fnmatch_lines([line])
    assert last_report(bench_folder)["last_canary"] == line
    # It cannot be gone on with, and a rebuilt index keeps it apart too.
    refused = bench_folder.run(
        "--llmbench-supplement", planted["session"], "--llmbench-supplement-reason", "to see",
        card=bench_folder.path / "card.json", paths=(DECODE,),
    )  # fmt: skip
    refused.stderr.fnmatch_lines(["*is a canary: its server was slowed on purpose*"])
    assert llmbench(bench_folder, "history", "rebuild").returncode == 0
    with Store.open(bench_folder.path / ".llmbench") as store:
        assert [one.session for one in store.canaries("card", machine)] == [planted["session"]]
        assert planted["session"] not in {one.session for one in store.sessions()}


def test_what_is_not_caught_is_said_with_what_could_have_been(bench_folder: Bench) -> None:
    # Noise of 30 %: nothing that small can be seen.
    report = seeded_session(bench_folder, spread=0.3)
    done = llmbench(
        bench_folder,
        "canary",
        "--setup",
        "card.json",
        "--way",
        "pace",
        "--slow",
        "1%",
        DECODE,
        "-k",
        "code]",
        "-p",
        "no:cacheprovider",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "was NOT caught: no figure regressed" in done.stdout
    assert "does not resolve a change of that size here" in done.stdout
    with Store.open(bench_folder.path / ".llmbench") as store:
        (kept,) = store.canaries("card", keys.machine_key(report["contract"]["identity"]))
    assert kept.canary is not None


def test_a_card_that_nothing_judges_is_refused(bench_folder: Bench) -> None:
    bench_folder.card(pace=PACE)
    done = llmbench(bench_folder, "canary", "--setup", "card.json", "--way", "pace", DECODE)
    assert done.returncode == 4
    assert "no figure of card is judged here yet: its baselines have 0 sessions, 5 are needed" in done.stdout
    assert not list((bench_folder.path / ".llmbench").glob("runs/*/card/report.json"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--slow", "0%"], "not a percentage"),
        (["--slow", "90%"], "at most 80%"),
        (["--gpu-power", "100"], "add --allow-gpu-limits"),
        (["--threads", "0"], "others sizes above 0"),
        ([], "name the suite's folder"),
    ],
)
def test_wrong_calls_start_nothing(bench_folder: Bench, args: list[str], said: str) -> None:
    bench_folder.card()
    done = llmbench(bench_folder, "canary", "--setup", "card.json", *args)
    assert done.returncode == 4
    assert said.replace("others", "other") in done.stderr


@pytest.mark.parametrize("flag", [["--llmbench-save", "a"], ["--llmbench-probe"], ["--llmbench-accept", "why"]])
def test_a_canary_is_never_saved_accepted_or_a_probe(bench_folder: Bench, flag: list[str]) -> None:
    done = bench_folder.run_here("--llmbench-canary", "pause:10%", *flag, card=bench_folder.card(), paths=(DECODE,))
    assert done.ret == 4
    assert f"{flag[0]} has no use for it" in done.stderr.str()
