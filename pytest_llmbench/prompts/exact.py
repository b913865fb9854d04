"""Prompts of exactly N tokens, as the server counts them."""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.prompts.counter import Recipe
from pytest_llmbench.prompts.filler import filler_log
from pytest_llmbench.prompts.nonces import nonce as make_nonce
from pytest_llmbench.prompts.texts import load_text, text_sha256
from pytest_llmbench.records import Prompt

if TYPE_CHECKING:
    from pytest_llmbench.prompts.counter import TokenCounter

# One token each in common BPE and SPM vocabularies; the last is for vocabularies of single characters.
PAD_UNITS = (" of", " to", " a", ";", "x")
_PROBE_LINES = 48
_PROBE_PADS = 16
# Padding that a recipe leaves for nonces and line sequences that take more tokens than its own.
_SPARE_PADS = 6
_TRIES_PER_UNIT = 4
# Every recipe is worked out with this nonce, so that it does not depend on which prompt came first.
_REFERENCE = make_nonce("reference", "reference", 0)


async def plain_prompt(counter: TokenCounter, *, nonce: str, text: str) -> Prompt:
    """Nonce and text as they are; the tokens are counted (template included), not brought to a size. One call."""
    whole = f"{nonce}\n\n{text}"
    return Prompt(whole, text_sha256(whole), await counter.chat_tokens(whole), exact=False, nonce=nonce)


async def exact_prompt(counter: TokenCounter, *, n: int, nonce: str, tail: str, field: str = "prompt_tokens") -> Prompt:
    """Nonce, filler log and tail (the task) such that the server counts exactly ``n`` prompt tokens, template included.

    The text follows from n, nonce, tail and the server's tokenizer and template alone: neither the sequence in which
    prompts are made nor what ``counter.learnt`` holds changes it. The first prompt of a tokenizer costs about six counts,
    a new size or task two or three, each further prompt one or two; the last count is always of the very text returned.
    Raises InputError (named ``field``) when n is too small for nonce, tail and template; LlmbenchError when no padding
    makes this tokenizer hit n. Source: METHOD, "Exactly N tokens".
    """
    recipe = await _recipe(counter, n, tail, field)
    per_line = await _line_tokens(counter)
    first_unit = await _pad_unit(counter)
    counts: list[int] = []
    units = (first_unit, *(other for other in PAD_UNITS if other != first_unit))
    # A tokenizer may step over n with one padding word or one set of lines, and hit it with another.
    for dropped, unit in product((0, 1), units):
        lines = max(0, recipe.lines - dropped)
        pads = recipe.pads + round((recipe.lines - lines) * per_line)
        tried: set[tuple[int, int]] = set()
        while (lines, pads) not in tried and len(tried) < _TRIES_PER_UNIT:
            tried.add((lines, pads))
            text = _compose(nonce, lines, unit * pads, tail)
            count = await counter.chat_tokens(text)
            if count == n:
                return Prompt(text, text_sha256(text), n, exact=True, nonce=nonce)
            counts.append(count)
            if lines == pads == 0 and count > n:
                raise _too_small(field, n, count)
            lines, pads = _step(lines, pads, n - count, per_line)
    raise LlmbenchError(
        f"{field} = {n}: no padding makes this server count {n} prompt tokens; it counted {', '.join(map(str, counts))}"
    )


def _compose(nonce: str, lines: int, padding: str, tail: str) -> str:
    return f"{nonce}\n\n{filler_log(lines, nonce)}End of the log:{padding} end.\n\n{tail}"


def _step(lines: int, pads: int, missing: int, per_line: float) -> tuple[int, int]:
    """Lines and pads that are expected to hit: padding takes up the difference, and lines give way where it cannot."""
    pads += missing
    if pads < 0:
        dropped = min(lines, ceil(-pads / per_line))
        lines -= dropped
        pads += round(dropped * per_line)
    return lines, max(0, pads)


async def _recipe(counter: TokenCounter, n: int, tail: str, field: str) -> Recipe:
    """Lines and pads that make about n tokens with the reference nonce. Two counts as a rule, none when known."""
    key = (n, text_sha256(tail))
    known = counter.learnt.recipes.get(key)
    if known:
        return known
    base = await _base(counter, tail)
    if base > n:
        raise _too_small(field, n, base)
    per_line = await _line_tokens(counter)
    most_pads = _SPARE_PADS + 2 * ceil(per_line)
    lines, count = 0, base
    for _ in range(6):
        pads = n - count
        if 0 <= pads <= most_pads and (lines == 0 or pads >= _SPARE_PADS):
            break
        # A step of less than a line would stand still.
        change = round((pads - _SPARE_PADS - per_line / 2) / per_line) or (1 if pads > 0 else -1)
        lines = max(0, lines + change)
        count = await counter.chat_tokens(_compose(_REFERENCE, lines, "", tail))
    recipe = Recipe(lines, max(0, n - count))
    counter.learnt.recipes[key] = recipe
    return recipe


async def _base(counter: TokenCounter, tail: str) -> int:
    """Tokens of everything but the log and the padding."""
    key = text_sha256(tail)
    if key not in counter.learnt.base:
        counter.learnt.base[key] = await counter.chat_tokens(_compose(_REFERENCE, 0, "", tail))
    return counter.learnt.base[key]


async def _line_tokens(counter: TokenCounter) -> float:
    """Tokens per log line, from a log of fixed length: always the same value for one tokenizer."""
    if counter.learnt.line_tokens is None:
        tail = load_text("question")
        base = await _base(counter, tail)
        probe = await counter.chat_tokens(_compose(_REFERENCE, _PROBE_LINES, "", tail))
        counter.learnt.line_tokens = max(1.0, (probe - base) / _PROBE_LINES)
    return counter.learnt.line_tokens


async def _pad_unit(counter: TokenCounter) -> str:
    """The first padding word of which 16 are 16 tokens; the first of all when none is (the search then tries each)."""
    if counter.learnt.unit is None:
        tail = load_text("question")
        base = await _base(counter, tail)
        counter.learnt.unit = PAD_UNITS[0]
        for unit in PAD_UNITS:
            if await counter.chat_tokens(_compose(_REFERENCE, 0, unit * _PROBE_PADS, tail)) - base == _PROBE_PADS:
                counter.learnt.unit = unit
                break
    return counter.learnt.unit


def _too_small(field: str, n: int, least: int) -> InputError:
    return InputError(
        field,
        n,
        f"{n} tokens are too few: nonce, task and chat template alone take {least}",
        f"ask for at least {least} tokens, or use a prompt with a shorter task",
    )
