"""Old and new in turns: whole sessions with two paces."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pytest_llmbench import verify
from pytest_llmbench.history.store import Store
from pytest_llmbench.journal import read_lines
from pytest_llmbench.outcomes.file import VerdictFile
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from pathlib import Path

    from bench_folder import Bench

ONE_CELL = {"parts": ["decode"], "decode": {"prompts": ["code"], "runs": 2, "max_tokens": 24, "warmups": 0}}
DECODE = ("test_decode.py",)


def old_card(bench: Bench, pace: dict[str, Any], **changes: Any) -> Path:
    """A second card with a second engine, under the same id."""
    kept = bench.path / "new.json"
    path = bench.card(pace=pace, **changes)
    old = path.rename(bench.path / "old.json")
    assert not kept.exists()
    return old


def folder(bench: Bench) -> Path:
    (found,) = (bench.path / ".llmbench" / "runs").glob("*/card")
    return found


def verified(one: Path) -> None:
    checks = verify.check(one)
    assert [check for check in checks if not check.matches] == []
    assert any(" pair " in check.figure for check in checks) is (one.name != "against")


def decode(report: dict[str, Any]) -> dict[str, Any]:
    (cell,) = report["cells"]
    return next(dict(figure) for figure in cell["figures"] if figure["name"] == "decode_tok_s")


def test_a_slower_engine_regresses_and_ends_early(bench_folder: Bench) -> None:
    old = old_card(bench_folder, {"tok_s": 400}, plan=ONE_CELL)
    new = bench_folder.card(pace={"tok_s": 100, "ttft_ms": 200}, plan=ONE_CELL)
    done = bench_folder.run("--llmbench-against", str(old), card=new, paths=DECODE)
    assert done.ret == 10, done.stdout.str()
    done.stdout.fnmatch_lines(
        [
            "*llmbench: against card (*old.json); differs (old -> new): env.LLMBENCH_PACED*",
            "*decode?code? pair 3 of at most 30: new *, old *; -* % (? … ?), goes on*",
            "*pairs in * min: every figure knows*",
        ]
    )
    report = bench_folder.report()
    jsonschema.validate(report, packaged_schema())
    figure = decode(report)
    assert figure["verdict"] == figure["compared"]["outcome"] == "regressed"
    assert figure["compared"]["ratio"] == pytest.approx(0.25, rel=0.4)
    assert figure["compared"]["interval"][1] < 1
    pairs = figure["compared"]["pairs"]
    assert [pair["first"] for pair in pairs[:4]] == ["new", "old", "new", "old"]
    assert 7 <= len(pairs) < 30
    assert all(len(pair["new_runs"]) == 2 for pair in pairs)
    said = "\n".join(figure["explanation"])
    assert "regressed against old: " in said
    assert "pair 2: old " in said
    assert "differs (old -> new): env.LLMBENCH_PACED" in said
    assert "against/raw/decode-code.jsonl" in said
    # Every pair has a start of its own on each side, and never two servers at once.
    assert sorted(start for pair in pairs for start in pair["old_starts"]) == list(range(1, len(pairs) + 1))
    events = [
        (event["t_ns"], event["event"])
        for one in (folder(bench_folder), folder(bench_folder) / "against")
        for event in read_lines(one / "journal.jsonl")
        if event["event"] in {"server starting", "server stopped"}
    ]
    assert [name for _, name in sorted(events)] == ["server starting", "server stopped"] * 2 * len(pairs)
    for one in (folder(bench_folder), folder(bench_folder) / "against"):
        verified(one)
    other = json.loads((folder(bench_folder) / "against" / "report.json").read_text())
    jsonschema.validate(other, packaged_schema())
    assert (report["against"]["role"], other["against"]["role"]) == ("new", "old")
    assert report["against"]["ended"] == other["against"]["ended"] == "every figure knows"
    assert decode(other)["verdict"] is None
    verdict = VerdictFile.model_validate_json((folder(bench_folder).parent / "verdict.json").read_text())
    assert verdict.category == "performance"
    assert verdict.summary[0].startswith("decode[code] regressed against old: ")
    # It is no session of a history, now or after a rebuild.
    with Store.open(bench_folder.path / ".llmbench") as store:
        assert store.record(report, folder(bench_folder)) is False
        assert store.rebuild().sessions == 0
    assert bench_folder.servers() == []


def test_alike_within_a_wide_margin_is_equivalent(bench_folder: Bench) -> None:
    # Few tokens at a slow pace: the pace rules, not the machine.
    plan = {"parts": ["prefill"], "prefill": {"depths": [128], "runs": 1, "max_tokens": 4}}
    card = bench_folder.card(pace={"ttft_ms": 100}, plan=plan)
    old = shutil.copy(card, bench_folder.path / "old.json")
    done = bench_folder.run(
        "--llmbench-against", str(old), "--llmbench-margin", "50%", card=card, paths=("test_prefill.py",)
    )
    assert done.ret == 0, done.stdout.str()
    (cell,) = bench_folder.report()["cells"]
    assert {figure["verdict"] for figure in cell["figures"] if figure["compared"]} == {"equivalent"}
    assert bench_folder.report()["against"]["differs"] == []


@pytest.mark.parametrize("strict", [False, True])
def test_too_few_pairs_say_what_they_could_have_seen(bench_folder: Bench, strict: bool) -> None:  # noqa: FBT001
    card = bench_folder.card(plan=ONE_CELL)
    old = shutil.copy(card, bench_folder.path / "old.json")
    more = ["--llmbench-strict"] if strict else []
    done = bench_folder.run("--llmbench-against", str(old), "--llmbench-pairs", "1", *more, card=card, paths=DECODE)
    assert done.ret == (10 if strict else 0), done.stdout.str()
    done.stdout.fnmatch_lines(
        ["decode?code? inconclusive against old: *: the budget of 1 pair is used up; too few pairs*"]
    )
    assert decode(bench_folder.report())["verdict"] == "inconclusive"


def test_minutes_end_it_too_and_a_floor_still_holds(bench_folder: Bench) -> None:
    card = bench_folder.card(plan=ONE_CELL, thresholds={"decode[code]": {"decode_tok_s": {"floor": 1_000_000}}})
    old = shutil.copy(card, bench_folder.path / "old.json")
    done = bench_folder.run("--llmbench-against", str(old), "--llmbench-budget", "0.001", card=card, paths=DECODE)
    assert done.ret == 10
    figure = decode(bench_folder.report())
    assert figure["verdict"] == "below floor"
    assert "the budget of 0.001 min has no room for another pair" in figure["explanation"][1]
    assert len(figure["compared"]["pairs"]) == 1


def test_an_old_engine_that_does_not_start_is_said_as_such(bench_folder: Bench) -> None:
    old = old_card(bench_folder, {}, plan=ONE_CELL, server={"args": ["-m", "tiny.gguf", "--no-such-flag"]})
    done = bench_folder.run("--llmbench-against", str(old), card=bench_folder.card(plan=ONE_CELL), paths=DECODE)
    assert done.ret == 11, done.stdout.str()
    done.stdout.fnmatch_lines(["*the old card, card: *"])
    assert bench_folder.servers() == []


def test_an_old_model_that_is_missing_is_said_as_such(bench_folder: Bench) -> None:
    old = old_card(bench_folder, {}, plan=ONE_CELL, model={"name": "Tiny", "file": {"path": "gone.gguf"}})
    done = bench_folder.run_here("--llmbench-against", str(old), card=bench_folder.card(plan=ONE_CELL), paths=DECODE)
    assert done.ret == 11, done.stdout.str()
    done.stdout.fnmatch_lines(["*the old card, card: *gone.gguf*"])


def test_a_control_that_only_the_card_names_is_left_out_aloud(bench_folder: Bench) -> None:
    old = old_card(bench_folder, {}, plan=ONE_CELL)
    new = bench_folder.card(plan=ONE_CELL, control={"card": "control.json"})
    said = "llmbench: the card's control takes no turns in this session: *"
    done = bench_folder.run_here("--llmbench-against", str(old), "--collect-only", card=new)
    assert done.ret == 0
    done.stdout.fnmatch_lines([said])
    done = bench_folder.run_here(
        "--llmbench-against", str(old), "--llmbench-control", "off", "--collect-only", card=new
    )
    done.stdout.no_fnmatch_line(said)


def test_what_measures_something_else_is_refused(bench_folder: Bench) -> None:
    old = old_card(bench_folder, {}, sampling={"values": {"temperature": 0.9}, "seed": 7})
    done = bench_folder.run_here("--llmbench-against", str(old), card=bench_folder.card())
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*do not measure the same*", "*decode?code?: request.temperature: 0.9 -> 0.5*"])
    assert not (bench_folder.path / ".llmbench").exists()


def test_cells_of_one_card_alone_are_named(bench_folder: Bench) -> None:
    plan = {"parts": ["decode", "prefill"], "decode": {"runs": 2, "max_tokens": 32}, "prefill": {"depths": [64]}}
    old = old_card(bench_folder, {}, plan=plan)
    done = bench_folder.run_here("--llmbench-against", str(old), "--collect-only", "-q", card=bench_folder.card())
    assert done.ret == 0
    assert "prefill" not in "".join(line for line in done.outlines if "::" in line)
    old.write_text(old.read_text().replace('["decode", "prefill"]', '["prefill"]'))
    done = bench_folder.run_here("--llmbench-against", str(old), card=bench_folder.card())
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*the two cards have no cell in common*"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--llmbench-margin", "3"], "there is no --llmbench-against"),
        (["--llmbench-against", "card.json", "--llmbench-margin", "0"], "not a percentage above 0"),
        (["--llmbench-against", "card.json", "--llmbench-pairs", "2.5"], "not a whole number"),
        (["--llmbench-against", "card.json", "--llmbench-budget", "nan"], "not a number of minutes"),
        (["--llmbench-against", "card.json", "--llmbench-probe"], "--llmbench-probe has no use"),
        (["--llmbench-against", "card.json", "--llmbench-save", "x"], "--llmbench-save has no use"),
        (["--llmbench-against", "card.json", "--setup", "other.json"], "goes with one --setup card"),
        (["--llmbench-against", "missing.json"], "missing.json"),
        (["--llmbench-against", "card.json", "--llmbench-control", "other.json"], "--llmbench-control has no use"),
    ],
)
def test_wrong_calls(bench_folder: Bench, words: list[str], said: str) -> None:
    bench_folder.card("other")
    done = bench_folder.run_here(*words, card=bench_folder.card())
    assert done.ret == 4
    assert said in done.stderr.str()


def test_such_a_session_is_not_gone_on_with(bench_folder: Bench) -> None:
    card = bench_folder.card(plan=ONE_CELL)
    bench_folder.run("--llmbench-against", str(card), "--llmbench-pairs", "1", card=card, paths=DECODE)
    done = bench_folder.run_here("--llmbench-resume", folder(bench_folder).parent.name, card=card, paths=DECODE)
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*is a direct comparison*"])
