"""Nothing of pydantic's speech comes through in a card's faults, whatever is wrong wherever."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.card import SetupCard
from pytest_llmbench.errors import CardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FULL: dict[str, Any] = {
    "llmbench_card": 1,
    "id": "c",
    "title": "T",
    "notes": ["n"],
    "hardware": {"gpus": [{"name": "x", "power_limit_w": 5, "count": 1}], "ram_gb": 5, "driver": {"name": "x"}},
    "model": {"name": "M", "file": {"path": "x.gguf"}, "size_bytes": 5, "sha256": "0" * 64},
    "engine": {"kind": "llama-server", "binary": {"path": "/x"}, "origin": {"kind": "release", "tag": "b1"}},
    "server": {"args": ["-c", "8192", "-np", "1"], "env": {"A": "b"}, "secrets": {"HF_TOKEN": "B"}, "complete": True},
    "sampling": {"values": {"temperature": 0.5}, "seed": 1},
    "thinking": {"default": False, "parts": {"decode": True}, "send_off": {"a": 1}},
    "plan": {"parts": ["decode"], "decode": {"prompts": ["code"], "runs": 2}, "prefill": {"depths": [512]}},
    "thresholds": {"decode[code]": {"decode_tok_s": {"floor": 5}}},
    "client_check": {"decode_within": 0.1},
    "validity": {"min_tokens": 5},
    "watch": {"guard": True, "ignore": [{"process": "a", "reason": "b"}], "limit_share": 0.5},
    "deviations": [{"what": "a", "why": "b"}],
    "published": [{"figure": "a", "value": 5, "source": "b"}],
}
WRONG: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**30, "", "x" * 200, "\x1b[2J", [], [[]], {}, {"x": {}})
SPEECH = re.compile(
    r"Input should|[Tt]uple|NoneType|[Dd]ictionary|valid (string|integer|number|list|bool)|pydantic|[Vv]alue error|"
    r"\bNone\b|\bTrue\b|\bFalse\b|Extra inputs|Field required|should have|instance of|what belongs here"
)


def places(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if way:
        yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*way, key))


def changed(way: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    card = copy.deepcopy(FULL)
    place: Any = card
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    return card


def test_the_whole_card_is_right(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(FULL))
    assert SetupCard.load(path).id == "c"


@pytest.mark.parametrize("way", list(places(FULL)), ids=str)
def test_wrong_values_at_every_place(tmp_path: Path, way: tuple[str | int, ...]) -> None:
    path = tmp_path / "card.json"
    refused = 0
    for value in WRONG:
        path.write_text(json.dumps(changed(way, value)))
        try:
            SetupCard.load(path)
        except CardError as error:
            refused += 1
            text = str(error)
            assert str(way[0]) in text
            assert not SPEECH.search(text.replace(str(path), "")), text
            assert all(line.isprintable() for line in text.split("\n"))
            assert "remedy: " in text
    # What takes anything: fields of a request, the servers' own names, and figures of others.
    assert refused or way[0] in {"thinking", "sampling", "published"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("null", "is null, not an object"),
        ("true", "is true or false, not an object"),
        ('{"title": "\\ud800"}', r"holds half a character (\ud800)"),
        ('{"llmbench_card": 1' + "0" * 5000 + "}", "holds a number of thousands of digits"),
    ],
)
def test_files_that_are_no_card(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(CardError) as caught:
        SetupCard.load(path)
    assert words in str(caught.value)
