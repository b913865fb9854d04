"""What a cell's requests carry."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cells import CODE

from pytest_llmbench.card import SetupCard
from pytest_llmbench.measure import request
from pytest_llmbench.records import Prompt

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = Prompt("Tell me.", "0" * 64, 10, exact=False, nonce="six words")


def card(tmp_path: Path, **sections: Any) -> SetupCard:
    content = {
        "llmbench_card": 1,
        "id": "card",
        "title": "A card",
        "model": {"name": "M", "file": {"path": "m.gguf"}},
        "engine": {"kind": "llama-server"},
        "server": {"args": ["-m", "m.gguf", "-c", "8192"]},
        "plan": {"parts": ["decode"]},
        **sections,
    }
    path = tmp_path / "card.json"
    path.write_text(json.dumps(content))
    return SetupCard.load(path)


def test_the_observers_own_fields_are_in_every_request(tmp_path: Path) -> None:
    sent = request.body(card(tmp_path), replace(CODE, max_tokens=None), PROMPT)
    assert sent == {
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
        "messages": [{"role": "user", "content": "Tell me."}],
    }


def test_sampling_seed_and_limits_come_from_the_card(tmp_path: Path) -> None:
    one = card(tmp_path, sampling={"values": {"temperature": 0.7, "top_k": 40}, "seed": 0})
    sent = request.fields(one, replace(CODE, ignore_eos=True))
    assert {key: value for key, value in sent.items() if key not in request.OBSERVER_FIELDS} == {
        "temperature": 0.7,
        "top_k": 40,
        "seed": 0,  # a seed of 0 is a seed
        "max_tokens": 512,
        "ignore_eos": True,
    }


def test_thinking_is_sent_as_the_card_has_it(tmp_path: Path) -> None:
    one = card(
        tmp_path,
        thinking={
            "send_on": {"chat_template_kwargs": {"enable_thinking": True}},
            "send_off": {"chat_template_kwargs": {"enable_thinking": False}},
        },
    )
    for on in (True, False):
        assert request.fields(one, replace(CODE, thinking=on))["chat_template_kwargs"] == {"enable_thinking": on}


@pytest.mark.parametrize("name", ["stream", "cache_prompt", "max_tokens", "messages"])
def test_a_card_cannot_take_the_observers_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(Exception, match=rf"sampling\.values\.{name}"):
        card(tmp_path, sampling={"values": {name: 1}})
