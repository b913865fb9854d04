"""The paced server's pure parts: knobs, tokeniser, schedule, command line."""

from __future__ import annotations

import json

import pytest

from pytest_llmbench.errors import InputError
from pytest_llmbench.paced import Pace
from pytest_llmbench.paced.answer import make_answer, make_chunks
from pytest_llmbench.paced.ask import parse_ask
from pytest_llmbench.paced.command import CommandError, parse_command
from pytest_llmbench.paced.faults import count_start
from pytest_llmbench.paced.schedule import make_schedule, start_speed
from pytest_llmbench.paced.slots import common_prefix
from pytest_llmbench.paced.tokenizer import chat_prompt, decode, encode


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The river kept its own time.",
        "  two  spaces\n\nand\ttabs ",
        "naïve 😀 日本語",
        "x = 12345; // a\\b\x00\x7f",
        "a" * 9,
    ],
)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert decode(encode(text)) == text


def test_tokens_are_what_the_docstring_says() -> None:
    assert len(encode("through")) == 2
    assert len(encode(" through")) == 2
    assert len(encode("1234567")) == 3
    assert len(encode("😀")) == 4
    assert len(encode("<|im_start|>")) == 1
    assert len(encode("<|im_start|>", parse_special=False)) > 1
    assert encode("a", add_bos=True) == [0, *encode("a")]
    # Not additive: what is cut apart counts more.
    assert len(encode("river")) < len(encode("r")) + len(encode("iver")) + 1
    assert len(encode("ab")) < len(encode("a")) + len(encode("b"))
    assert all(0 <= token < 2**31 for token in encode("zzzz 😀 \x7f\x7f\x7f\x7f"))


def test_the_template_costs_a_fixed_number_of_tokens() -> None:
    counts = {
        len(encode(chat_prompt([{"role": "user", "content": text}]))) - len(encode(text))
        for text in ("One.", "x" * 1000, "The river kept its own time.")
    }
    assert len(counts) == 1


def test_common_prefix() -> None:
    a = tuple(range(1000))
    assert common_prefix(a, a) == 1000
    assert common_prefix(a, (*a[:617], -1, *a[618:])) == 617
    assert common_prefix(a, (-1,)) == 0
    assert common_prefix((), a) == 0


# ---- knobs


def test_a_pace_survives_json() -> None:
    pace = Pace(tok_s=80, requests={"3": {"drop_after": 4}}, speed_by_request=(1.0, 0.5), truth_log="x")
    assert Pace.from_json(pace.to_json()) == pace
    assert json.loads(Pace().to_json()) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tok_per_s": 5}', ["tok_per_s", "unknown key", "tok_s"]),
        ('{"tok_s": "fast"}', ["tok_s", "'fast'", "float"]),
        ('{"tok_s": 0}', ["tok_s", "above zero"]),
        ('{"ttft_ms": -1}', ["ttft_ms", "below zero"]),
        ('{"framing": "carrier pigeon"}', ["framing", "chunked"]),
        ('{"requests": {"first": {}}}', ["requests", "'first'", "counted from 1"]),
        ('{"requests": {"0": {}}}', ["requests", "'0'"]),
        ('{"requests": {"3": {"dropafter": 1}}}', ["requests['3']", "dropafter", "drop_after"]),
        ('{"requests": {"3": {"load_s": 1}}}', ["load_s", "not for one request"]),
        ('{"requests": {"3": {"tok_s": -1}}}', ["tok_s", "above zero"]),
        ('{"start_slow_every": 3}', ["counter_file"]),
        ("[]", ["not a JSON object"]),
        ("{", ["not JSON"]),
    ],
)
def test_a_bad_pace_is_told(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Pace.from_json(text)
    for word in words:
        assert word in str(caught.value)


def test_rules_hold_for_their_requests_only() -> None:
    pace = Pace(requests={"3": {"tok_s": 1}, "5-6": {"tok_s": 2}, "9-": {"tok_s": 3}, "%4": {"hang_after": 7}})
    assert [pace.for_request(n).tok_s for n in range(1, 11)] == [50, 50, 1, 50, 2, 2, 50, 50, 3, 3]
    assert [n for n in range(1, 13) if pace.for_request(n).hang_after == 7] == [4, 8, 12]


# ---- schedule


def test_the_schedule_is_absolute_and_the_timings_divide_by_intervals() -> None:
    pace = Pace(ttft_ms=100, prefill_tok_s=1000, tok_s=50)
    schedule = make_schedule(pace, number=1, slot_ns=5_000_000_000, processed=200, tokens=101)
    assert schedule.release(0) == 5_300_000_000
    assert schedule.release(100) == 7_300_000_000
    timings = schedule.timings(cache_n=7, prompt_n=200, predicted_n=101)
    assert timings["prompt_ms"] == 300.0
    assert timings["predicted_ms"] == 2000.0
    assert timings["predicted_per_second"] == pytest.approx(50.0)
    assert timings["prompt_per_second"] == pytest.approx(200 / 0.3)
    assert timings["cache_n"] == 7
    one = schedule.timings(cache_n=0, prompt_n=200, predicted_n=1)
    assert (one["predicted_ms"], one["predicted_per_second"]) == (0.001, 0.0)
    none = schedule.timings(cache_n=0, prompt_n=0, predicted_n=0)
    assert (none["prompt_ms"], none["predicted_ms"]) == (0.0, 0.0)


def test_bursts_leave_together_at_the_same_rate() -> None:
    schedule = make_schedule(Pace(ttft_ms=0, tok_s=1000, burst_tokens=4), number=1, slot_ns=0, processed=1, tokens=11)
    assert [schedule.release(k) // 1_000_000 for k in range(11)] == [0, 4, 4, 4, 4, 8, 8, 8, 8, 10, 10]


def test_jitter_never_adds_up_nor_turns_time_back() -> None:
    pace = Pace(ttft_ms=0, tok_s=1000, jitter_ms=5, seed=3)
    schedule = make_schedule(pace, number=1, slot_ns=0, processed=1, tokens=300)
    times = [schedule.release(k) for k in range(300)]
    assert times == sorted(times)
    assert all(0 <= t - k * 1_000_000 <= 5_000_001 for k, t in enumerate(times))
    assert len({t - k * 1_000_000 for k, t in enumerate(times)}) > 50
    again = make_schedule(pace, number=1, slot_ns=0, processed=1, tokens=300)
    assert times == [again.release(k) for k in range(300)]
    other = make_schedule(pace, number=2, slot_ns=0, processed=1, tokens=300)
    assert times != [other.release(k) for k in range(300)]


def test_speed_changes_by_request_and_by_start() -> None:
    def last(pace: Pace, number: int = 1, start: float = 1.0) -> int:
        made = make_schedule(pace, number=number, slot_ns=0, processed=0, tokens=51, start_factor=start)
        return made.release(50)

    pace = Pace(ttft_ms=0, tok_s=50, speed_by_request=(1.0, 0.5))
    assert [last(pace, n) for n in (1, 2, 3)] == [1_000_000_000, 2_000_000_000, 2_000_000_000]
    slow = Pace(start_slow_every=3, start_slow_factor=2.0, counter_file="x")
    assert [start_speed(slow, n) for n in range(1, 7)] == [1, 1, 0.5, 1, 1, 0.5]
    assert last(Pace(ttft_ms=0, tok_s=50), start=0.5) == 2_000_000_000
    noisy = Pace(ttft_ms=0, tok_s=50, speed_cv=0.05)
    drawn = [1e9 / last(noisy, n) for n in range(1, 201)]
    mean = sum(drawn) / 200
    assert mean == pytest.approx(1.0, abs=0.02)
    assert (sum((d - mean) ** 2 for d in drawn) / 199) ** 0.5 == pytest.approx(0.05, rel=0.25)


def test_starts_are_counted_in_a_file(tmp_path: object) -> None:
    path = f"{tmp_path}/starts"
    assert [count_start(path) for _ in range(3)] == [1, 2, 3]
    assert count_start(None) == 1


# ---- answers


def _ask(**body: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **body}).encode()


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4, "n_predict": 5}, 5),
        ({"n_predict": -1}, None),
        ({}, 77),
    ],
)
def test_which_limit_wins(body: dict[str, object], limit: int | None) -> None:
    assert parse_ask("chat", _ask(**body), add_bos=True, default_limit=77).limit == limit


def test_every_token_is_in_exactly_one_chunk() -> None:
    ask = parse_ask("chat", _ask(max_tokens=100), add_bos=True, default_limit=None)
    for pace in (
        Pace(),
        Pace(tokens_per_chunk=3, first_chunk_tokens=5),
        Pace(silent_every=4),
        Pace(reasoning_tokens=13, tokens_per_chunk=4, tool_call_from=50),
        Pace(answer="日本語 😀 ok " * 30),
    ):
        answer = make_answer(pace, ask, n_ctx=8192)
        chunks = list(make_chunks(pace, answer))
        assert [t for c in chunks for t in range(c.last - c.tokens + 1, c.last + 1)] == list(range(100))
        assert all(c.text for c in chunks)
        assert "�" not in "".join(c.text for c in chunks[:-1])


def test_the_end_of_text_is_a_token_without_a_chunk() -> None:
    ask = parse_ask("chat", _ask(max_tokens=100), add_bos=True, default_limit=None)
    answer = make_answer(Pace(stop_after=10), ask, n_ctx=8192)
    assert (answer.tokens, answer.stop, answer.truncated) == (10, "eos", False)
    assert sum(c.tokens for c in make_chunks(Pace(), answer)) == 9
    text = make_answer(Pace(answer="One two."), ask, n_ctx=8192)
    assert "".join(c.text for c in make_chunks(Pace(), text)) == "One two."
    assert text.tokens == len(encode("One two.")) + 1


def test_a_full_context_ends_the_answer() -> None:
    ask = parse_ask("chat", _ask(max_tokens=100), add_bos=True, default_limit=None)
    answer = make_answer(Pace(), ask, n_ctx=len(ask.prompt_ids) + 20)
    assert (answer.tokens, answer.stop, answer.truncated) == (20, "limit", True)
    early = make_answer(Pace(truncate_after=5), ask, n_ctx=8192)
    assert (early.tokens, early.stop, early.truncated) == (5, "limit", True)


def test_ignore_eos() -> None:
    ask = parse_ask("chat", _ask(max_tokens=100, ignore_eos=True), add_bos=True, default_limit=None)
    assert make_answer(Pace(stop_after=10), ask, n_ctx=8192).tokens == 100
    assert make_answer(Pace(stop_after=10, honours_ignore_eos=False), ask, n_ctx=8192).tokens == 10


# ---- command line


@pytest.mark.parametrize(
    ("args", "slots", "n_ctx"),
    [
        ([], 4, 131072),
        (["-c", "4096"], 4, 4096),
        (["-c", "4096", "-np", "2"], 2, 2048),
        (["-c", "4096", "-np", "3"], 3, 1536),
        (["-c", "4096", "-np", "4", "-kvu"], 4, 4096),
        (["--ctx-size", "262144", "--parallel", "1"], 1, 131072),
        (["-c", "100", "--n_gpu_layers", "99", "--metrics"], 4, 256),
    ],
)
def test_the_context_of_a_slot(args: list[str], slots: int, n_ctx: int) -> None:
    options = parse_command(args)
    assert (options.n_slots, options.n_ctx_slot(131072)) == (slots, n_ctx)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bogus"], "error: invalid argument: --bogus"),
        (["--ctx-size=4"], "error: invalid argument: --ctx-size=4"),
        (["--no-mmap"], "error: invalid argument: --no-mmap"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "abc"], 'error while handling argument "-c": stoi'),
        (
            ["--draft-max", "8"],
            'error while handling argument "--draft-max": the argument has been removed. use --spec',
        ),
    ],
)
def test_a_bad_command_line_gets_the_real_words(args: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_command(args)
    assert str(caught.value).startswith(words)
