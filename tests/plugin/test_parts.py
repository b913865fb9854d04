"""Concurrency, context, long_answer and fit, as whole sessions against a paced server."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from bench_folder import SUITES

from pytest_llmbench import verify
from pytest_llmbench.report.document import packaged_schema, schema

if TYPE_CHECKING:
    from pathlib import Path

    from bench_folder import Bench

ALL = tuple(f"test_{part}.py" for part in ("decode", "prefill", "concurrency", "context", "long_answer", "fit"))
SMALL: dict[str, Any] = {
    "decode": {"runs": 2, "max_tokens": 32},
    "prefill": {"depths": [512], "runs": 2, "max_tokens": 4},
    "concurrency": {"levels": [1, 2, 5], "rounds": 2, "max_tokens": 16},
    "context": {"depths": [4096], "runs": 2, "max_tokens": 16},
    "long_answer": {},
    "fit": {"sizes": [1024, 2048]},
}


@pytest.fixture
def parts(bench_folder: Bench) -> Bench:
    for name in ALL:
        shutil.copy(SUITES / name, bench_folder.path / name)
    return bench_folder


def plan(*names: str, **changes: Any) -> dict[str, Any]:
    return {"parts": list(names), **{name: SMALL[name] | changes.get(name, {}) for name in names}}


def server(*args: str, **pace: Any) -> dict[str, Any]:
    return {
        "args": ["-m", "tiny.gguf", *args],
        "env": {"LLMBENCH_PACED": json.dumps({"tok_s": 500, "ttft_ms": 5, **pace})},
    }


def cell(report: dict[str, Any], cell_id: str) -> dict[str, Any]:
    return dict(next(c for c in report["cells"] if c["id"] == cell_id))


def figures(report: dict[str, Any], cell_id: str) -> dict[str, dict[str, Any]]:
    return {f["name"]: f for f in cell(report, cell_id)["figures"]}


def run_folder(bench: Bench) -> Path:
    (found,) = (bench.path / ".llmbench" / "runs").glob("*/card")
    return found


def test_the_packaged_schema_is_fresh() -> None:
    assert packaged_schema() == schema()


def test_all_parts_are_measured_on_as_few_servers_as_possible(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit", "long_answer", "context", "concurrency", "prefill", "decode"),
        server=server("-c", "16384", "-np", "2", stop_after=300),
    )
    result = parts.run(card=card, paths=ALL)
    result.assert_outcomes(passed=11)
    report = parts.report()
    jsonschema.validate(report, packaged_schema())
    assert report["complete"]
    assert [c["id"] for c in report["cells"]][-1] == "fit[2048]"
    starts = {c["id"]: {a["server_start"] for a in c["attempts"]} for c in report["cells"]}
    assert {n for c, found in starts.items() if not c.startswith("fit") for n in found} == {1}
    assert (starts["fit[1024]"], starts["fit[2048]"]) == ({2}, {3})
    assert report["headline"]["fit_largest"] == 2048
    assert parts.servers() == []


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (("-m", "fit"), ["fit[1024]", "fit[2048]"]),
        (("-m", "context or long_answer"), ["ctx[4096-code]", "ctx[4096-prose]", "long_answer"]),
        (("-k", "concurrency and 2"), ["conc[2]"]),
        (("--llmbench-parts", "fit,long_answer"), ["long_answer", "fit[1024]", "fit[2048]"]),
        (("--llmbench-parts", "fit", "--llmbench-sizes", "1024,4096"), ["fit[1024]", "fit[4096]"]),
        (("--llmbench-parts", "concurrency", "--llmbench-levels", "1,64"), ["conc[1]", "conc[64]"]),
    ],
)
def test_parts_are_picked_by_marker_word_and_flag(parts: Bench, args: tuple[str, ...], left: list[str]) -> None:
    card = parts.card(
        plan=plan("fit", "long_answer", "context", "concurrency", "prefill", "decode"),
        server=server("-c", "16384", "-np", "2"),
    )
    result = parts.run_here("--collect-only", "-q", *args, card=card, paths=ALL)
    names = {"concurrency": "conc", "context": "ctx", "long_answer": "long_answer", "fit": "fit"}
    found = [line.partition("::test_")[2] for line in result.stdout.lines if "::test_" in line]
    assert [names[one.partition("[")[0]] + one.removeprefix(one.partition("[")[0]) for one in found] == left


def test_concurrency_above_the_slots_is_labelled_and_told_apart(parts: Bench) -> None:
    card = parts.card(
        plan=plan("concurrency", concurrency={"levels": [1, 2, 5]}), server=server("-c", "16384", "-np", "2", tok_s=100)
    )
    result = parts.run(card=card, paths=("test_concurrency.py",))
    result.assert_outcomes(passed=3)
    report = parts.report()
    assert figures(report, "conc[2]")["total_tok_s"]["label"] is None
    found = figures(report, "conc[5]")
    assert found["total_tok_s"]["label"] == "queues"
    assert found["queued_requests"]["values"] == [3.0, 3.0]
    # A queued one has waited for 16 tokens at 100 tok/s, less what the release itself took.
    assert found["queued_ttft_ms"]["median"] > 100
    assert found["started_ttft_ms"]["median"] < found["queued_ttft_ms"]["median"]
    assert found["request_tok_s"]["median"] < found["total_tok_s"]["median"]
    assert "queues, 3 requests waited for a slot" in result.stdout.str()


def test_one_failed_request_takes_its_round_down(parts: Bench) -> None:
    card = parts.card(
        plan=plan("concurrency", concurrency={"levels": [3], "rounds": 1}),
        server=server("-c", "16384", "-np", "4", requests={"2": {"http_error": 500}}),
    )
    parts.run(card=card, paths=("test_concurrency.py",)).assert_outcomes(passed=1)
    first, second = cell(parts.report(), "conc[3]")["attempts"]
    assert "HTTP 500" in first["error"]
    assert "request 2 of 3: HTTP 500" in first["figures"][0]["reasons"][0]
    assert second["error"] is None


def test_a_short_answer_makes_a_round_invalid(parts: Bench) -> None:
    card = parts.card(
        plan=plan("concurrency", concurrency={"levels": [2], "rounds": 1}),
        server=server("-c", "16384", "-np", "4", requests={"2": {"stop_after": 3}, "4": {"stop_after": 3}}),
    )
    result = parts.run(card=card, paths=("test_concurrency.py",))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*conc[[]2] invalid: run 1 of 1: request [12] of 2: 3 tokens generated*"])


@pytest.mark.parametrize("level", [64, 256])
def test_many_at_once(parts: Bench, level: int) -> None:
    card = parts.card(
        plan=plan("concurrency", concurrency={"levels": [level], "rounds": 1, "max_tokens": 8}),
        server=server("-c", str(4096 * level), "-np", str(level), tok_s=4, keep_alive_s=120),
    )
    setup = ("-p", "no:cacheprovider", "test_concurrency.py", "--setup", str(card))
    parts.pytester.runpytest_subprocess(*setup, timeout=500)  # the paced server reads 256 long prompts one by one
    found = cell(parts.report(), f"conc[{level}]")
    attempt = found["attempts"][0]
    assert attempt["error"] is None
    assert [one["completion_tokens"] for one in attempt["details"]["requests"]] == [8] * level
    assert attempt["details"]["queued_requests"] == 0
    # On a busy machine the client may have been late; then it must say so, and nothing else.
    said = [reason for figure in attempt["figures"] for reason in figure["reasons"]]
    assert all("the client was too slow to tell" in reason for reason in said)
    values = {f["name"]: f["value"] for f in attempt["figures"]}
    # 8 tokens at 4 tok/s after the first take 1.75 s at least, whatever the machine does.
    assert values["total_tok_s"] <= 8 * level / 1.75
    assert values["request_tok_s"] <= 8 / 1.75


def test_context_cells_have_prefill_first_token_and_decode(parts: Bench) -> None:
    # 100 tok/s: a schedule that a busy machine keeps.
    card = parts.card(plan=plan("context"), server=server("-c", "8192", "-np", "1", tok_s=100))
    parts.run(card=card, paths=("test_context.py",)).assert_outcomes(passed=2)
    report = parts.report()
    for name in ("ctx[4096-code]", "ctx[4096-prose]"):
        found = figures(report, name)
        assert all(found[one]["median"] for one in ("prefill_tok_s", "ttft_ms", "decode_tok_s"))
        assert [a["details"]["prompt_tokens"] for a in cell(report, name)["attempts"]] == [4096, 4096]


def test_a_long_answer_is_timed_and_its_text_kept(parts: Bench) -> None:
    card = parts.card(plan=plan("long_answer"), server=server("-c", "8192", "-np", "1", stop_after=300))
    parts.run(card=card, paths=("test_long_answer.py",)).assert_outcomes(passed=1)
    report, folder = parts.report(), run_folder(parts)
    (attempt,) = cell(report, "long_answer")["attempts"]
    assert attempt["details"]["finish_reason"] == "stop"
    (text,) = attempt["details"]["texts"]
    assert len((folder / text).read_text(encoding="utf-8")) == attempt["details"]["characters"] > 300
    found = figures(report, "long_answer")
    assert found["tokens"]["median"] == 300
    assert found["wall_s"]["median"] >= 299 / 500
    (record,) = [json.loads(line) for line in (folder / "raw" / "long-answer.jsonl").read_text().splitlines()]
    assert "max_tokens" not in record["body"]


@pytest.mark.parametrize(
    ("limits", "pace", "said"),
    [
        ({"max_tokens": 64}, {}, "the card's limit of 64 tokens was reached after 64 tokens"),
        ({}, {"truncate_after": 40}, "the server cut it off after 40 tokens"),
    ],
)
def test_a_long_answer_that_is_cut_off_is_none(
    parts: Bench, limits: dict[str, Any], pace: dict[str, Any], said: str
) -> None:
    card = parts.card(plan=plan("long_answer", long_answer=limits), server=server("-c", "8192", "-np", "1", **pace))
    result = parts.run(card=card, paths=("test_long_answer.py",))
    result.assert_outcomes(failed=1)
    assert f"long_answer invalid: run 1 of 1: the answer did not end by itself: {said}" in result.stdout.str()


def test_fit_starts_anew_with_each_size_and_fills_it(parts: Bench) -> None:
    card = parts.card(plan=plan("fit", fit={"sizes": [1024, 2048, 4096]}), server=server("-c", "4096", "-np", "1"))
    result = parts.run(card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=3)
    report = parts.report()
    for size in (1024, 2048, 4096):
        found = figures(report, f"fit[{size}]")
        assert found["prompt_tokens"]["median"] == size * 95 // 100
        assert found["share_filled"]["median"] == pytest.approx(0.95, abs=0.001)
        assert found["load_s"]["median"] > 0
        memory = found["peak_memory_mib"]
        # A number with whose memory it is, or the reason why there is none; never 0.
        assert (memory["median"] and memory["label"]) or memory["reasons"]
    assert "Largest context that answered: **4096** tokens" in result.stdout.str()
    journal = [json.loads(line) for line in (run_folder(parts) / "journal.jsonl").read_text().splitlines()]
    ready = [e for e in journal if e["event"] == "server ready"]
    assert [e["argv"][e["argv"].index("-c") + 1] for e in ready] == ["1024", "2048", "4096"]


def test_fit_stops_at_the_first_size_that_fails_and_says_why(parts: Bench) -> None:
    # Its prompt of 1945 tokens dies with the server; the smaller one is the first request of its own server.
    engine = parts.path / "small-engine"
    text = parts.engine.read_text().replace(
        "sys.exit(main())",
        "import os\n"
        "if '2048' in sys.argv or '4096' in sys.argv:\n"
        "    sys.stderr.write('ggml: failed to allocate buffer for kv cache\\n')\n"
        "    sys.exit(1)\n"
        "sys.exit(main())",
    )
    engine.write_text(text, encoding="utf-8")
    engine.chmod(0o755)
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024, 2048, 4096]}),
        server=server("-c", "4096", "-np", "1"),
        engine={"kind": "llama-server", "binary": {"path": str(engine)}},
    )
    result = parts.run("-rs", card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    text = result.stdout.str()
    assert "fit[2048] failed" in text
    assert "exit code 1" in text
    assert "failed to allocate buffer for kv cache" in text
    assert "fit[4096]: not tried: fit[2048] failed" in text
    report = parts.report()
    assert [c["status"] for c in report["cells"]] == ["measured", "failed", "unsupported"]
    assert cell(report, "fit[2048]")["attempts"][0]["details"]["failed_after_s"] > 0
    assert report["headline"]["fit_largest"] == 1024
    assert parts.servers() == []


def test_a_size_above_the_cards_own_context_is_not_promised(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024, 2048]}),
        server=server("-c", "1024", "-np", "1"),
        engine={"kind": "llama-server", "binary": {"path": str(_refusing(parts, "2048"))}},
    )
    result = parts.run("-rs", card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=1, skipped=1)
    assert "fit[2048]: run 1 of 1: server start 2 failed" in result.stdout.str()
    assert result.ret == 0
    report = parts.report()
    assert report["complete"]
    assert cell(report, "fit[2048]")["status"] == "unsupported"


def test_the_way_between_the_last_good_and_the_first_bad_size_is_searched(parts: Bench) -> None:
    engine = parts.path / "limited-engine"
    engine.write_text(
        parts.engine.read_text().replace(
            "sys.exit(main())",
            "sys.exit(1 if '-c' in sys.argv and int(sys.argv[sys.argv.index('-c') + 1]) > 3500 else main())",
        ),
        encoding="utf-8",
    )
    engine.chmod(0o755)
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024, 8192], "refine": True}),
        server=server("-c", "8192", "-np", "1"),
        engine={"kind": "llama-server", "binary": {"path": str(engine)}},
    )
    result = parts.run(card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=1, failed=1)
    report = parts.report()
    jsonschema.validate(report, packaged_schema())
    # Halfway 4096 fails, then 2048 answers, then 3072.
    assert [(c["id"], c["status"]) for c in report["searched"]] == [
        ("fit[2048]", "measured"),
        ("fit[3072]", "measured"),
        ("fit[4096]", "failed"),
    ]
    assert report["headline"]["fit_largest"] == 3072
    assert [one for one in verify.check(run_folder(parts)) if not one.matches] == []


def _refusing(bench: Bench, size: str) -> Path:
    engine = bench.path / "refusing-engine"
    engine.write_text(
        bench.engine.read_text().replace("sys.exit(main())", f"sys.exit(1 if '{size}' in sys.argv else main())"),
        encoding="utf-8",
    )
    engine.chmod(0o755)
    return engine


def test_an_answer_that_fit_does_not_get_names_the_servers_words(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024]}),
        server=server("-c", "1024", "-np", "1", http_error=500),
    )
    result = parts.run(card=card, paths=("test_fit.py",))
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "fit[1024] failed: run 1 of 1: HTTP 500" in text
    assert "after the server's start began" in text
    assert "the last lines of its log" in text
    assert len(cell(parts.report(), "fit[1024]")["attempts"]) == 1  # a size that fails is the answer


def test_a_server_that_takes_less_context_than_asked_is_said(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024, 4096]}),
        server=server("-c", "1024", "-np", "1", n_ctx_train=2048),
    )
    result = parts.run(card=card, paths=("test_fit.py",))
    result.assert_outcomes(passed=2)
    report = parts.report()
    assert cell(report, "fit[4096]")["notes"] == ["the server gives one request 2048 tokens, 4096 were asked for"]
    assert figures(report, "fit[4096]")["prompt_tokens"]["median"] == 2048 * 95 // 100
    assert report["headline"]["fit_largest"] == 1024
    assert "fit[4096]: the server gives one request 2048 tokens" in result.stdout.str()


def test_a_decode_rate_that_collapses_is_said(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit"),
        server=server(
            "-c", "2048", "-np", "1", start_slow_every=2, start_slow_factor=4, counter_file=str(parts.path / "starts")
        ),
    )
    parts.run(card=card, paths=("test_fit.py",)).assert_outcomes(passed=2)
    (note,) = cell(parts.report(), "fit[2048]")["notes"]
    assert note.startswith("decode collapsed: ")


def test_a_limit_on_a_figure_without_a_number_fails(parts: Bench) -> None:
    card = parts.card(
        plan=plan("fit", fit={"sizes": [1024], "max_tokens": 1}),
        server=server("-c", "1024", "-np", "1"),  # one token has no decode rate
        thresholds={"fit[1024]": {"decode_tok_s": {"floor": 1}}},
    )
    result = parts.run(card=card, paths=("test_fit.py",))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*fit[[]1024] decode_tok_s: the card has a limit for it and there is no number*"])


def test_nothing_is_measured_on_a_server_that_may_still_be_busy(parts: Bench) -> None:
    (parts.path / "test_mine.py").write_text(
        "import asyncio, pytest\n"
        "@pytest.mark.llmbench('decode')\n"
        "async def test_mine(bench, cell):\n"
        "    with pytest.raises(asyncio.TimeoutError):\n"
        "        await asyncio.wait_for(bench.measure(cell), 4)\n"
    )
    card = parts.card(
        plan=plan("decode", "prefill", decode={"prompts": ["code"], "warmups": 0}, prefill={"runs": 1}),
        server=server("-c", "8192", "-np", "1", requests={"2": {"hang_after": 1}}),
    )
    parts.run(card=card, paths=("test_mine.py", "test_prefill.py")).assert_outcomes(passed=2)
    assert [a["server_start"] for a in cell(parts.report(), "prefill[512]")["attempts"]] == [2]
    journal = (run_folder(parts) / "journal.jsonl").read_text(encoding="utf-8")
    assert '"event":"attempt interrupted"' in journal
    assert "it may still be busy with a request that was given up" in journal
    assert parts.servers() == []
