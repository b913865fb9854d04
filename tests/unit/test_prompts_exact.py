"""Prompts of exactly N tokens, with counters that are nastier than real tokenizers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.prompts import Learnt, build, exact_prompt, load_text, nonce, plain_prompt
from pytest_llmbench.records import CellSpec, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable

TEMPLATE = 11
QUESTION = load_text("question")


def bpe_like(text: str) -> int:
    """Words with their space, single digits, runs of line ends."""
    return len(re.findall(r" ?[A-Za-z]+|\d|\n+|[^\sA-Za-z\d]| ", text))


def merges_across_joins(text: str) -> int:
    """Line ends stick to whatever stands on both sides, so no part counts alone as it does in the whole."""
    return len(re.findall(r"[A-Za-z.]*\n+[A-Za-z\d]{0,3}| ?[A-Za-z]{1,5}|\d{1,3}|[^\sA-Za-z\d]| ", text))


def blind_chunks(text: str) -> int:
    """Four characters a token, whatever they are: a padding word is a fraction of a token."""
    return -(-len(text) // 4)


def characters(text: str) -> int:
    return len(text)


def wobbles(text: str) -> int:
    """One more or less for no visible reason."""
    return bpe_like(text) + crc32(text.encode()) % 2


def words_cost_two(text: str) -> int:
    """No padding word is a single token."""
    return 2 * len(re.findall(r"[A-Za-z]+", text)) + len(re.findall(r"[^A-Za-z ]", text))


COUNTS = (bpe_like, merges_across_joins, blind_chunks, characters, wobbles, words_cost_two)


class Counter:
    """An in-memory TokenCounter that keeps the size of every text it was asked about."""

    def __init__(self, count: Callable[[str], int] = bpe_like, learnt: Learnt | None = None) -> None:
        self.count = count
        self.learnt = learnt or Learnt()
        self.asked: list[int] = []

    async def chat_tokens(self, text: str) -> int:
        tokens = TEMPLATE + self.count(text)
        self.asked.append(tokens)
        return tokens


def _nonce(run: int = 1) -> str:
    return nonce("plan", "prefill[2048]", run)


@pytest.mark.asyncio
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("n", [700, 701, 702, 703, 2048, 8192, 32768])
async def test_counts_exactly_n(count: Callable[[str], int], n: int) -> None:
    counter = Counter(count)
    for run in range(3):
        prompt = await exact_prompt(counter, n=n, nonce=_nonce(run), tail=QUESTION)
        assert TEMPLATE + count(prompt.text) == n == prompt.tokens
        assert counter.asked[-1] == n, "the last count is of the text that is sent"
        assert prompt.exact
        assert prompt.text.startswith(_nonce(run))
        assert prompt.text.endswith(QUESTION)


@pytest.mark.asyncio
@pytest.mark.parametrize("count", COUNTS)
async def test_same_texts_whatever_was_built_before(count: Callable[[str], int]) -> None:
    wanted = [(n, run, tail) for n in (1000, 4096, 5000) for run in (0, 1) for tail in (QUESTION, "Why?")]

    async def texts(order: list[tuple[int, int, str]], counter: Counter) -> dict[tuple[int, int, str], str]:
        return {
            (n, run, tail): (await exact_prompt(counter, n=n, nonce=_nonce(run), tail=tail)).text
            for n, run, tail in order
        }

    forward = await texts(wanted, Counter(count))
    assert await texts(wanted[::-1], Counter(count)) == forward
    for key in wanted:
        assert await texts([key], Counter(count)) == {key: forward[key]}
    warm = Counter(count)
    await texts(wanted, warm)
    assert await texts(wanted[::2], Counter(count, warm.learnt)) == {key: forward[key] for key in wanted[::2]}


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [bpe_like, merges_across_joins])
async def test_few_calls_and_few_of_them_deep(count: Callable[[str], int]) -> None:
    counter = Counter(count)
    await exact_prompt(counter, n=131072, nonce=_nonce(), tail=QUESTION)
    assert len(counter.asked) <= 8
    assert sum(tokens > 65536 for tokens in counter.asked) <= 5
    before = len(counter.asked)
    for run in range(2, 10):
        await exact_prompt(counter, n=131072, nonce=_nonce(run), tail=QUESTION)
    assert len(counter.asked) - before <= 8 * 2


@pytest.mark.asyncio
async def test_sixteen_long_prompts_cost_less_than_three_counts_each() -> None:
    counter = Counter()
    for depth in (16384, 32768, 65536, 131072):
        for text in ("code", "prose"):
            spec = CellSpec(f"ctx[{depth}-{text}]", "context", 2, prompt_id=text, prompt_tokens=depth)
            for run in range(2):
                await build(spec, "plan", run, 1, 0, counter)
    assert len(counter.asked) <= 48


@pytest.mark.asyncio
async def test_hopeless_counter_ends_with_an_error_that_says_what_was_counted() -> None:
    counter = Counter(lambda text: 2 * bpe_like(text))  # with the template's 11: never even
    with pytest.raises(LlmbenchError, match=r"prompt_tokens = 1000: .*it counted \d+"):
        await exact_prompt(counter, n=1000, nonce=_nonce(), tail=QUESTION)
    assert len(counter.asked) < 60


@pytest.mark.asyncio
async def test_smallest_possible_depth_is_hit_and_one_less_is_refused() -> None:
    least = TEMPLATE + bpe_like(f"{_nonce()}\n\nEnd of the log: end.\n\n{QUESTION}")
    assert (await exact_prompt(Counter(), n=least, nonce=_nonce(), tail=QUESTION)).tokens == least
    with pytest.raises(InputError, match=rf"{least - 1} tokens are too few: .* alone take {least}\n"):
        await exact_prompt(Counter(), n=least - 1, nonce=_nonce(), tail=QUESTION)


@pytest.mark.asyncio
async def test_own_nonce_longer_than_the_reference_is_refused_with_its_own_number() -> None:
    long_nonce = _nonce() + " extra words"
    least = TEMPLATE + bpe_like(f"{_nonce()}\n\nEnd of the log: end.\n\n{QUESTION}")
    with pytest.raises(InputError, match=rf"alone take {least + 2}\n"):
        await exact_prompt(Counter(), n=least, nonce=long_nonce, tail=QUESTION)


@pytest.mark.asyncio
async def test_much_longer_nonce_takes_the_place_of_log_lines() -> None:
    prompt = await exact_prompt(Counter(), n=2000, nonce="word " * 300, tail=QUESTION)
    assert TEMPLATE + bpe_like(prompt.text) == 2000


@pytest.mark.asyncio
async def test_plain_prompt_is_counted_once_and_left_as_it_is() -> None:
    counter = Counter()
    prompt = await plain_prompt(counter, nonce="river stone", text="Tell me.")
    assert prompt == Prompt("river stone\n\nTell me.", prompt.sha256, TEMPLATE + 6, exact=False, nonce="river stone")
    assert len(counter.asked) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("spec", "ending"),
    [
        (CellSpec("decode[code]", "decode", 2, prompt_id="code"), "code"),
        (CellSpec("decode[prose]", "decode", 2, prompt_id="prose"), "prose"),
        (CellSpec("conc[4]", "concurrency", 2, requests_per_run=4), "prose"),
        (CellSpec("long_answer", "long_answer", 1), "long_answer"),
        (CellSpec("prefill[2048]", "prefill", 3, prompt_tokens=2048), "question"),
        (CellSpec("fit[4096]", "fit", 1, prompt_tokens=3891), "question"),
        (CellSpec("ctx[6000-code]", "context", 2, prompt_id="code", prompt_tokens=6000), "code"),
        (CellSpec("ctx[6000-prose]", "context", 2, prompt_id="prose", prompt_tokens=6000), "prose"),
    ],
)
async def test_build_covers_every_part(spec: CellSpec, ending: str) -> None:
    prompts = [await build(spec, "plan", run, 1, request, Counter()) for run in range(2) for request in range(4)]
    assert len({prompt.text.split("\n")[0] for prompt in prompts}) == 8
    for prompt in prompts:
        assert prompt.text.endswith(load_text(ending))
        assert prompt.tokens == TEMPLATE + bpe_like(prompt.text)
        assert prompt.exact == (spec.prompt_tokens is not None)
        assert prompt.tokens == (spec.prompt_tokens or prompt.tokens)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (CellSpec("q", "quality", 1), "part = 'quality'"),
        (CellSpec("decode", "decode", 1), r"decode\.prompt_id: a decode cell has to name its text"),
        (CellSpec("decode[x]", "decode", 1, prompt_id="x"), "prompt_id = 'x': there is no such text"),
        (CellSpec("prefill", "prefill", 1), r"prefill\.prompt_tokens: a prefill cell has an exact size"),
        (
            CellSpec("ctx[512-prose]", "context", 1, prompt_id="prose", prompt_tokens=512),
            r"ctx\[512-prose\]\.prompt_tokens = 512: 512 tokens are too few: .* alone take \d{4}",
        ),
    ],
)
async def test_build_refuses_what_it_cannot_build(spec: CellSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        await build(spec, "plan", 0, 1, 0, Counter())
