"""Going on with a run that was killed, supplements of finished ones, and trial runs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from bench_folder import SUITES, events, kill_in_the_middle

from pytest_llmbench import verify
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from pathlib import Path

    from bench_folder import Bench


def runs(bench: Bench) -> list[Path]:
    return sorted((bench.path / ".llmbench" / "runs").glob("*/card"))


def report_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def hanging_card(bench: Bench) -> Path:
    # Request 1 is the warm-up, 2 and 3 are decode[code], 4 and 5 decode[prose]; the fifth never ends. A second server
    # gets no fifth request.
    return bench.card(pace={"requests": {"5": {"hang_after": 1}}})


def test_a_killed_run_is_readable_and_resumed_to_a_complete_one(bench_folder: Bench) -> None:
    card = hanging_card(bench_folder)
    old = kill_in_the_middle(bench_folder, card, after=4)
    assert not (old / "report.json").exists()
    assert [e["cell"] for e in events(old, "cell")] == ["decode[code]"]
    result = bench_folder.run("--llmbench-resume", card=card)
    result.assert_outcomes(passed=3)
    before, new = runs(bench_folder)
    assert before == old
    report = report_of(new)
    jsonschema.validate(report, packaged_schema())
    assert report["complete"]
    assert report["continues"]["kind"] == "resume"
    assert report["continues"]["session"] == old.parent.name
    was, now = old.parent.name, new.parent.name
    assert {c["id"]: c["sessions"] for c in report["cells"]} == {
        "decode[code]": [was],
        "decode[prose]": [was, now],
        "prefill[512]": [now],
    }
    # Nothing was measured twice: the second server saw its warm-up and the three runs that were missing.
    ids = [json.loads(line)["request_id"] for path in (new / "raw").iterdir() for line in path.read_text().splitlines()]
    assert sorted(one.rpartition("/")[0] for one in ids if one.endswith("/s2")) == [
        "decode[code]/0/1/0",
        "decode[prose]/2/1/0",
        "prefill[512]/1/1/0",
        "prefill[512]/2/1/0",
    ]
    assert [one for one in verify.check(new) if not one.matches] == []
    assert (new / "server-1.log").exists()
    assert (new / "server-2.log").exists()
    assert f"Resume of {was}" in result.stdout.str()
    assert bench_folder.servers() == []
    again = bench_folder.run("--llmbench-resume", now, card=card)
    assert "nothing is left to measure in it" in again.stderr.str()
    last = bench_folder.run("--llmbench-resume", card=card)  # the old one was gone on with already
    assert "no unfinished run of card card" in last.stderr.str()


def searching_card(bench: Bench) -> Path:
    """More than 3,500 tokens do not fit; 3072 hangs while it loads, as long as there is a file "hang"."""
    engine = bench.path / "limited-engine"
    engine.write_text(
        bench.engine.read_text().replace(
            "sys.exit(main())",
            "import pathlib, time\n"
            "size = int(sys.argv[sys.argv.index('-c') + 1]) if '-c' in sys.argv else 0\n"
            "while size == 3072 and pathlib.Path(__file__).with_name('hang').exists():\n"
            "    time.sleep(0.1)\n"
            "sys.exit(1 if size > 3500 else main())",
        ),
        encoding="utf-8",
    )
    (bench.path / "hang").touch()
    engine.chmod(0o755)
    shutil.copy(SUITES / "test_fit.py", bench.path / "test_fit.py")
    return bench.card(
        plan={"parts": ["fit"], "fit": {"sizes": [1024, 8192, 16384], "max_tokens": 4, "refine": True}},
        server={
            "args": ["-m", "tiny.gguf", "-c", "16384", "-np", "1"],
            "env": {"LLMBENCH_PACED": json.dumps({"tok_s": 1000, "ttft_ms": 5})},
        },
        engine={"kind": "llama-server", "binary": {"path": str(engine)}},
    )


def test_a_search_of_fit_that_was_cut_short_goes_on_where_it_was(bench_folder: Bench) -> None:
    card = searching_card(bench_folder)
    # 1024 answers, 8192 and halfway 4096 fail, 2048 answers; 3072 hangs.
    old = kill_in_the_middle(bench_folder, card, after=4, of="cell", files=("test_fit.py",))
    assert [e["cell"] for e in events(old, "cell")] == ["fit[1024]", "fit[8192]", "fit[4096]", "fit[2048]"]
    (bench_folder.path / "hang").unlink()
    result = bench_folder.run("--llmbench-resume", card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    new = runs(bench_folder)[1]
    report = report_of(new)
    jsonschema.validate(report, packaged_schema())
    assert [c["status"] for c in report["cells"]] == ["measured", "failed", "unsupported"]
    was, now = old.parent.name, new.parent.name
    assert [(c["id"], c["status"], c["sessions"]) for c in report["searched"]] == [
        ("fit[2048]", "measured", [was]),
        ("fit[3072]", "measured", [now]),
        ("fit[4096]", "failed", [was]),
    ]
    assert report["headline"]["fit_largest"] == 3072
    assert len(events(new, "server starting")) == 1
    assert [one for one in verify.check(new) if not one.matches] == []
    # And it is at its end now: that is remembered too.
    again = bench_folder.run("--llmbench-resume", now, card=card, paths=("test_fit.py",))
    assert "nothing is left to measure in it" in again.stderr.str()


def test_another_setup_is_refused_with_the_differences(bench_folder: Bench) -> None:
    kill_in_the_middle(bench_folder, hanging_card(bench_folder), after=4)
    other = bench_folder.card(
        pace={"requests": {"5": {"hang_after": 1}}}, sampling={"values": {"temperature": 0.9}, "seed": 7}
    )
    result = bench_folder.run("--llmbench-resume", card=other)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len(runs(bench_folder)) == 1
    text = result.stderr.str()
    assert "another setup or machine" in text
    assert "identity.card.sampling.temperature: then 0.5, now 0.9" in text


def test_another_engine_is_refused(bench_folder: Bench) -> None:
    card = hanging_card(bench_folder)
    kill_in_the_middle(bench_folder, card, after=4)
    bench_folder.engine.write_text(bench_folder.engine.read_text() + "# another build\n")
    result = bench_folder.run("--llmbench-resume", card=card)
    result.assert_outcomes(errors=3)
    assert "engine.sha256: then" in result.stdout.str()
    assert len(runs(bench_folder)) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--llmbench-resume",), ("--llmbench-resume", "no unfinished run of card card")),
        (("--llmbench-resume", "nowhere"), ("--llmbench-resume", "nowhere", "no run of card card")),
        (("--llmbench-supplement", "nowhere"), ("--llmbench-supplement", "no reason is stated")),
        (("--llmbench-supplement-reason", "x"), ("there is no --llmbench-supplement",)),
        (
            ("--llmbench-supplement", "x", "--llmbench-supplement-reason", "y", "--llmbench-save", "z"),
            ("only a session's own first valid results enter a baseline",),
        ),
        (("--llmbench-probe", "--llmbench-save", "z"), ("--llmbench-probe", "never a measurement", "--llmbench-save")),
        (("--llmbench-levels", "1,two"), ("--llmbench-levels", "1,two", "whole numbers above 0")),
        (("--llmbench-runs", "1,2"), ("--llmbench-runs", "one whole number")),
        (
            ("--llmbench-depths", "9000"),
            ("--llmbench-depths 9000", "cannot be measured so", "one request may use 8192"),
        ),
    ],
)
def test_bad_wishes(bench_folder: Bench, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = bench_folder.run_here(*args, card=bench_folder.card())
    text = str(result.stderr) + str(result.stdout)
    for word in words:
        assert word in text
    assert "Traceback" not in text
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_supplement_adds_what_has_no_valid_result(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run("-x", card=card, paths=("test_decode.py",)).assert_outcomes(passed=2)
    (first,) = runs(bench_folder)
    why = "prefill was left out of the first session"
    result = bench_folder.run(
        "--llmbench-supplement", first.parent.name, "--llmbench-supplement-reason", why, card=card
    )
    result.assert_outcomes(passed=3)
    second = runs(bench_folder)[1]
    report = report_of(second)
    assert report["complete"]
    assert report["continues"]["reason"] == why
    assert report["contract"]["continues"]["reason"] == why
    assert {c["id"]: c["sessions"] for c in report["cells"]} == {
        "decode[code]": [first.parent.name],
        "decode[prose]": [first.parent.name],
        "prefill[512]": [second.parent.name],
    }
    assert why in result.stdout.str()


def test_a_supplement_replaces_a_whole_part_and_both_stay(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run(card=card).assert_outcomes(passed=3)
    (first,) = runs(bench_folder)
    before = report_of(first)
    wish = ("--llmbench-supplement", str(first), "--llmbench-supplement-reason", "a backup ran during decode")
    pieces = bench_folder.run(*wish, "--llmbench-parts", "decode", "-k", "prose", card=card)
    assert "a part is replaced whole" in pieces.stderr.str()
    nothing = bench_folder.run(*wish, card=card)
    assert "nothing is left to measure in it" in nothing.stderr.str()
    result = bench_folder.run(*wish, "--llmbench-parts", "decode", card=card)
    result.assert_outcomes(passed=2, deselected=1)
    folder = runs(bench_folder)[-1]
    report = report_of(folder)
    jsonschema.validate(report, packaged_schema())
    cells = {c["id"]: c for c in report["cells"]}
    assert list(cells) == ["decode[code]", "decode[prose]", "prefill[512]"]
    assert cells["prefill[512]"]["sessions"] == [first.parent.name]
    code = cells["decode[code]"]
    assert code["sessions"] == [folder.parent.name]
    was = {f["name"]: f["median"] for f in before["cells"][0]["figures"]}
    assert code["replaced"]["medians"] == was
    assert code["replaced"]["session"] == first.parent.name
    assert (folder / code["replaced"]["raw_file"]).resolve() == (first / "raw" / "decode-code.jsonl").resolve()
    assert report_of(first) == before
    assert "decode[code] is shown from" in result.stdout.str()
    assert [one for one in verify.check(folder) if not one.matches] == []


def test_a_probe_is_labelled_and_never_judged(bench_folder: Bench) -> None:
    card = bench_folder.card(
        plan={"parts": ["decode", "prefill"], "prefill": {"depths": [512]}},
        thresholds={"decode[code]": {"decode_tok_s": {"floor": 90_000}}},
    )
    result = bench_folder.run("--llmbench-probe", card=card)
    result.assert_outcomes(passed=3)
    (folder,) = runs(bench_folder)
    report = report_of(folder)
    jsonschema.validate(report, packaged_schema())
    assert report["probe"]
    assert {c["promised"]["runs"] for c in report["cells"]} == {1}
    assert [c["promised"]["max_tokens"] for c in report["cells"]] == [128, 128, 16]
    assert {f["verdict"] for c in report["cells"] for f in c["figures"]} == {None}
    assert "Probe: a trial run, not a measurement" in result.stdout.str()


def test_the_plan_is_changed_by_flags_and_says_so(bench_folder: Bench) -> None:
    card = bench_folder.card(thresholds={"prefill[512]": {"ttft_ms": {"floor": 100_000}}})
    result = bench_folder.run("--llmbench-depths", "600,700", "--llmbench-runs", "1", card=card)
    result.assert_outcomes(passed=4)
    (folder,) = runs(bench_folder)
    report = report_of(folder)
    assert [c["id"] for c in report["cells"]][2:] == ["prefill[600]", "prefill[700]"]
    assert {c["promised"]["runs"] for c in report["cells"]} == {1}
    assert report["plan_changes"] == {"--llmbench-depths": [600, 700], "--llmbench-runs": 1}
    assert report["contract"]["plan_changes"] == report["plan_changes"]
    assert set(report["contract"]["identity"]["card"]["cells"]) == {c["id"] for c in report["cells"]}
    assert "Plan changed: --llmbench-depths 600,700; --llmbench-runs 1." in result.stdout.str()
