"""Our own texts: what ships is what the manifest says, and a change of it is a new version."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from itertools import pairwise

import pytest

from pytest_llmbench.errors import InputError
from pytest_llmbench.prompts import MANIFEST, PROMPT_IDS, PROMPTS_VERSION, filler_log, load_text, nonce, text_sha256
from pytest_llmbench.prompts.exact import _compose
from pytest_llmbench.prompts.texts import TEXT_NAMES

# One line a version. Never edit a line: raise PROMPTS_VERSION and add one.
PINNED = {
    "1": "32fbbf93b4d45a07bb82a3941dc9909a7279439ddb4ea350be2cfb93641e109e",
}


def _everything() -> str:
    """Digest of all that decides what a prompt says: texts, log, nonces, and the frame around them."""
    parts = {
        **{name: text_sha256(load_text(name)) for name in TEXT_NAMES},
        "log": text_sha256(filler_log(2000)),
        "ordered log": text_sha256(filler_log(2000, "river stone")),
        "frame": _compose("river", 2, " of of", "Why?"),
        "nonces": [nonce("plan", "decode[code]", run, 1, request) for run in range(20) for request in range(20)],
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def test_texts_are_those_of_the_manifest() -> None:
    assert {name: text_sha256(load_text(name)) for name in TEXT_NAMES} == MANIFEST


def test_a_change_of_what_prompts_say_is_a_new_version() -> None:
    assert PINNED.get(PROMPTS_VERSION) == _everything(), (
        "texts, word list, log or nonces changed: raise PROMPTS_VERSION, renew MANIFEST, and pin the new version here"
    )


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_texts_are_plain_ascii(name: str) -> None:
    text = load_text(name)
    assert text.isascii()
    assert "\t" not in text
    assert "\r" not in text
    assert text == text.strip()


def test_sizes_are_about_those_the_method_needs() -> None:
    words = {name: len(load_text(name).split()) for name in PROMPT_IDS}
    assert 550 <= words["code"] <= 700
    assert 2200 <= words["prose"] <= 2500
    assert words["long_answer"] < 400


def test_unknown_text_is_an_input_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'cod'.*\n.*code, prose, long_answer"):
        load_text("cod")


def test_nonces_differ_within_their_first_words() -> None:
    all_of_them = [
        nonce(plan, cell, run, attempt, request)
        for plan in ("aa", "bb")
        for cell in ("decode[code]", "conc[8]", "prefill[8192]")
        for run in range(10)
        for attempt in range(1, 5)
        for request in range(16)
    ]
    starts = {" ".join(one.split()[:4]) for one in all_of_them}
    assert len(starts) == len(all_of_them) == 3840


def test_nonce_depends_on_its_arguments_alone_and_keeps_them_apart() -> None:
    assert nonce("p", "c", 1, 1, 0) == nonce("p", "c", 1)
    assert nonce("p", "c1", 2) != nonce("p", "c", 12)
    assert nonce("pc", "x", 1) != nonce("p", "cx", 1)


def test_word_list_holds_512_different_words() -> None:
    words = load_text("words").split()
    assert len(words) == len(set(words)) == 512
    assert all(re.fullmatch("[a-z]{3,8}", word) for word in words)


def test_log_for_a_million_tokens_repeats_no_line_and_no_message() -> None:
    lines = filler_log(31_000).splitlines()
    assert len(lines) == 31_000
    assert len({line.partition(" ")[2] for line in lines}) == 31_000


def test_log_can_be_cut_anywhere() -> None:
    assert filler_log(500).startswith(filler_log(77))
    assert filler_log(0) == filler_log(0, "river") == ""
    assert filler_log(1, "river").count("\n") == 1


def test_logs_of_two_nonces_say_the_same_in_another_sequence() -> None:
    one, two = (
        [line.partition(" ")[2] for line in filler_log(3000, order).splitlines()] for order in ("river", "stone")
    )
    assert sorted(one) == sorted(two)
    assert not set(pairwise(one)) & set(pairwise(two)), "a run of two messages in common could be served from a cache"
