"""One session from card to report."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pytest_llmbench.client.parse import parse
from pytest_llmbench.journal import read_lines, trace_from_json
from pytest_llmbench.outcomes import EXIT_CODES
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from bench_folder import Bench


def figure(report: dict[str, Any], cell: str, name: str) -> dict[str, Any]:
    found = next(c for c in report["cells"] if c["id"] == cell)
    return dict(next(f for f in found["figures"] if f["name"] == name))


def test_every_promised_cell_is_measured_and_reported(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"tok_s": 200}))
    result.assert_outcomes(passed=3)
    report = bench_folder.report()
    jsonschema.validate(report, packaged_schema())
    assert report["complete"]
    assert [(c["id"], c["status"]) for c in report["cells"]] == [
        ("decode[code]", "measured"),
        ("decode[prose]", "measured"),
        ("prefill[512]", "measured"),
    ]
    # The paced server's schedule is the truth; a busy machine may only delay.
    assert figure(report, "decode[code]", "decode_tok_s")["median"] <= 1000
    assert figure(report, "prefill[512]", "prefill_tok_s")["values"]
    assert report["contract"]["guarded_runs"] == 6
    assert report["contract"]["requests"] == 7
    assert all(p["tokens"] == 512 for p in report["contract"]["prompts"] if p["cell"] == "prefill[512]")
    result.stdout.fnmatch_lines(
        ["*llmbench: card (Tiny, llama-server): decode, prefill; 6 runs, 7 requests*", "*| decode[[]code]*"]
    )
    assert result.stderr.str() == ""  # nothing that a user would have to ask about
    assert bench_folder.servers() == []


def test_every_figure_can_be_recomputed_from_raw_alone(bench_folder: Bench) -> None:
    bench_folder.run(card=bench_folder.card())
    report = bench_folder.report()
    (folder,) = (bench_folder.path / ".llmbench" / "runs").glob("*/card")
    for cell in report["cells"]:
        rates = []
        for record in read_lines(folder / cell["raw_file"]):
            if record["run"] == 0:
                continue
            one = trace_from_json(record)
            answer = parse(one)
            first, last = answer.events[0], answer.events[-1]
            assert one.t_send_ns is not None
            assert first.predicted_n is not None
            assert last.predicted_n is not None
            rates.append(
                (last.predicted_n - first.predicted_n) / ((last.t_ns - first.t_ns) / 1e9)
                if cell["part"] == "decode"
                else (answer.prompt_tokens or 0) / ((first.t_ns - one.t_send_ns) / 1e9)
            )
        name = "decode_tok_s" if cell["part"] == "decode" else "prefill_tok_s"
        assert figure(report, cell["id"], name)["values"] == pytest.approx(rates)


def test_requests_carry_the_card_and_nothing_else(bench_folder: Bench) -> None:
    bench_folder.run(card=bench_folder.card())
    (raw,) = (bench_folder.path / ".llmbench" / "runs").glob("*/card/raw/decode-code.jsonl")
    body = next(iter(read_lines(raw)))["body"]
    message = body.pop("messages")[0]
    assert set(message["content"]) == {"sha256", "characters"}
    assert body == {
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 32,
    }


def test_prompts_are_the_same_in_every_session_and_differ_within_one(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run(card=card)
    bench_folder.run(card=card)
    contracts = sorted((bench_folder.path / ".llmbench" / "runs").glob("*/card/contract.json"))
    first, second = (json.loads(p.read_text())["prompts"] for p in contracts)
    assert first == second
    assert len({p["sha256"] for p in first}) == len(first) == 6


def test_collect_only_lists_items_and_touches_nothing(bench_folder: Bench) -> None:
    result = bench_folder.run("--collect-only", "-q", card=bench_folder.card())
    result.stdout.fnmatch_lines(
        [
            "test_decode.py::test_decode[[]code]",
            "test_decode.py::test_decode[[]prose]",
            "test_prefill.py::test_prefill[[]512]",
        ]
    )
    assert not (bench_folder.path / ".llmbench").exists()
    assert not (bench_folder.path / ".report.json").exists()


def test_a_missed_floor_fails_that_item_and_says_everything(bench_folder: Bench) -> None:
    card = bench_folder.card(
        thresholds={"decode[code]": {"decode_tok_s": {"floor": 5000}, "ttft_ms": {"floor": 100_000}}}
    )
    result = bench_folder.run(card=card)
    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert re.search(r"decode\[code\] below floor: [\d.,]+ tok/s, the card's floor is 5,000 tok/s \(-\d", text)
    assert "promised: 2 runs, up to 32 tokens each" in text
    assert re.search(r"decode_tok_s: runs [\d.,]+ [\d.,]+ tok/s", text)
    assert re.search(r"raw: \S+/raw/decode-code\.jsonl", text)
    assert re.search(r"server log: \S+/server-1\.log", text)
    assert "Traceback" not in text
    assert re.search(r"FAILED test_decode.py::test_decode\[code\] - decode\[code\] below floor", text)


def test_a_ceiling_is_a_floor_for_latency(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(thresholds={"decode[prose]": {"ttft_ms": {"floor": 0.01}}}))
    result.assert_outcomes(passed=2, failed=1)
    assert re.search(
        r"decode\[prose\] ttft_ms above ceiling: [\d.,]+ ms, the card's ceiling is 0.01 ms", result.stdout.str()
    )


def test_a_missed_target_fails_under_its_own_name(bench_folder: Bench) -> None:
    result = bench_folder.run(
        card=bench_folder.card(thresholds={"decode[code]": {"decode_tok_s": {"floor": 1, "target": 5000}}})
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*decode[[]code] below target: *the card's target is 5,000 tok/s*"])


def test_an_invalid_run_is_attempted_once_more(bench_folder: Bench) -> None:
    # Request 1 is the warm-up, 2 is run 1 of decode[code].
    result = bench_folder.run(card=bench_folder.card(pace={"requests": {"2": {"cache_n": 3}}}))
    result.assert_outcomes(passed=3)
    cell = bench_folder.report()["cells"][0]
    assert [(a["run"], a["number"]) for a in cell["attempts"]] == [(1, 1), (1, 2), (2, 1)]
    assert "3 of" in cell["attempts"][1]["reason"]
    assert cell["requests_with_cached_tokens"] == 1
    assert cell["requests_examined_for_cache"] == 3


def test_a_cell_that_stays_invalid_fails_with_the_rule(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"cache_n": 3}))
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*decode[[]code] invalid: run 1 of 2: 3 of * prompt tokens came from the cache*"])
    report = bench_folder.report()
    assert not report["complete"]
    assert {c["status"] for c in report["cells"]} == {"invalid"}
    assert figure(report, "decode[code]", "decode_tok_s")["median"] is None


def test_wrong_prompt_counts_are_refused(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"prompt_count_error": 2}), paths=("test_prefill.py",))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*prefill[[]512] invalid: run 1 of 2: the server counted 514 prompt tokens, 512 were asked for*"]
    )


def test_a_crash_is_retried_on_a_fresh_server_and_named(bench_folder: Bench) -> None:
    result = bench_folder.run(
        card=bench_folder.card(pace={"requests": {"3": {"exit_after_tokens": 5, "exit_signal": "SIGSEGV"}}})
    )
    report = bench_folder.report()
    cell = report["cells"][0]
    result.assert_outcomes(passed=3)  # every fresh server dies at its third request, and the run is made once more
    assert "decode[code] run 2 was made 2 times: attempt 1 broke off" in result.stdout.str()
    assert [a["server_start"] for a in cell["attempts"]] == [1, 1, 2]
    assert "SIGSEGV" in cell["attempts"][1]["error"]
    assert "decode[code] run 2" in cell["attempts"][1]["error"]
    assert cell["status"] == "measured"


def test_a_server_that_always_dies_fails_the_cell_with_exit_and_log(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"exit_after_tokens": 2, "exit_code": 3}))
    text = result.stdout.str()
    assert "decode[code] failed: run 1 of 2: server start" in text
    assert "exit code 3" in text
    assert {c["status"] for c in bench_folder.report()["cells"]} == {"failed"}
    assert bench_folder.servers() == []


def test_a_server_that_does_not_start_is_one_error_told_once(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"start_exit": 9, "start_log": "the dog ate it"}))
    result.assert_outcomes(errors=3)
    text = result.stdout.str()
    assert "exit code 9" in text
    assert text.count("the dog ate it") <= 2  # in the log lines of the one long message
    assert "not measured, for the reason given above" in text
    report = bench_folder.report()
    assert {c["status"] for c in report["cells"]} == {"failed"}
    assert "exit code 9" in report["problems"][0]
    assert result.ret == EXIT_CODES["setup"]


def test_a_dropped_connection_is_a_failure_never_a_short_answer(bench_folder: Bench) -> None:
    result = bench_folder.run(card=bench_folder.card(pace={"requests": {"3": {"drop_after": 20}}}))
    result.assert_outcomes(passed=3)
    attempts = bench_folder.report()["cells"][0]["attempts"]
    assert attempts[1]["error"]
    assert attempts[2]["server_start"] == 2


def test_what_is_left_out_is_said(bench_folder: Bench) -> None:
    bench_folder.run("-k", "prose", card=bench_folder.card()).assert_outcomes(passed=1, deselected=2)
    contract = bench_folder.report()["contract"]
    assert [c["id"] for c in contract["cells"]] == ["decode[prose]"]
    assert [left["cell"] for left in contract["left_out"]] == ["decode[code]", "prefill[512]"]


def test_parts_are_picked(bench_folder: Bench) -> None:
    bench_folder.run("--llmbench-parts", "prefill", card=bench_folder.card()).assert_outcomes(passed=1, deselected=1)
    assert bench_folder.report()["contract"]["left_out"][0] == {
        "cell": "decode[code]",
        "why": "not among --llmbench-parts",
    }


def test_two_cards_run_one_after_the_other(bench_folder: Bench) -> None:
    one, two = bench_folder.card("one"), bench_folder.card("two", pace={"tok_s": 500})
    result = bench_folder.run("-v", "--setup", str(one), "--setup", str(two))
    result.assert_outcomes(passed=6)
    names = re.findall(r"\[(one|two)-\w+\] PASSED", result.stdout.str())
    assert names == ["one"] * 3 + ["two"] * 3
    assert bench_folder.report("one")["complete"]
    assert bench_folder.report("two")["complete"]


def test_stopping_early_leaves_no_promised_cell_in_silence(bench_folder: Bench) -> None:
    card = bench_folder.card(thresholds={"decode[code]": {"decode_tok_s": {"floor": 90_000}}})
    bench_folder.run("-x", card=card)
    assert [c["status"] for c in bench_folder.report()["cells"]] == ["measured", "missing", "missing"]


def test_pytest_json_report_is_on_and_holds_our_document(bench_folder: Bench) -> None:
    bench_folder.run(card=bench_folder.card())
    (path,) = (bench_folder.path / ".llmbench" / "runs").glob("*/pytest-report.json")
    document = json.loads(path.read_text())
    assert document["summary"]["passed"] == 3
    assert document["llmbench"]["card"]["complete"]


def test_pytest_json_report_goes_where_the_user_says(bench_folder: Bench) -> None:
    bench_folder.run("--json-report-file", "mine.json", "-k", "prose", card=bench_folder.card())
    assert json.loads((bench_folder.path / "mine.json").read_text())["llmbench"]["card"]["complete"]


def test_junit_gets_the_figures(bench_folder: Bench) -> None:
    bench_folder.run("--junit-xml", "out.xml", "-k", "prose", card=bench_folder.card())
    assert re.search(r'name="decode\[prose\] decode_tok_s" value="[\d.]+"', (bench_folder.path / "out.xml").read_text())


def test_the_document_goes_where_it_is_asked_for(bench_folder: Bench) -> None:
    bench_folder.run("--llmbench-json", "out/mine.json", "-k", "prose", card=bench_folder.card())
    assert json.loads((bench_folder.path / "out" / "mine.json").read_text())["llmbench_report"] == 1


def test_progress_is_visible_while_it_runs(bench_folder: Bench) -> None:
    text = bench_folder.run(card=bench_folder.card()).stdout.str()
    assert re.search(r"decode\[code\] warm-up: [\d.,]+ tok/s \([\d.]+ s\)", text)
    assert re.search(r"prefill\[512\] run 2 of 2: [\d.,]+ tok/s", text)


def test_a_test_of_ones_own_reads_like_the_sentence_it_checks(bench_folder: Bench) -> None:
    (bench_folder.path / "test_mine.py").write_text(
        "import pytest\n"
        "@pytest.mark.llmbench('decode')\n"
        "async def test_mine(bench, cell, card):\n"
        "    result = await bench.measure(cell)\n"
        "    assert result.summary('decode_tok_s').median > 1\n"
        "    assert card.id == 'card'\n"
        "    with pytest.raises(Exception, match='not promised'):\n"
        "        await bench.decode('nonsense')\n"
    )
    bench_folder.run(card=bench_folder.card(), paths=("test_mine.py",)).assert_outcomes(passed=2)
