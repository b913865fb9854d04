"""Saved sessions: names, contents, and what may not be compared."""

from __future__ import annotations

import copy
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from cells import attempt, figure, good, result

from pytest_llmbench.errors import InputError
from pytest_llmbench.history import saved

if TYPE_CHECKING:
    from pathlib import Path

KEY: dict[str, Any] = {
    "card_id": "card",
    "card": {"sampling": {"temperature": 0.5}, "cells": {"decode[code]": {"max_tokens": 512}}},
    "machine": {"host_id": "here", "gpus": [["RTX 5060 Ti", "GPU-1", 180.0]]},
}


def save(storage: Path, name: str = "main") -> Path:
    return saved.save(
        storage,
        name,
        key=KEY,
        when="2026-01-02T03:04:05+00:00",
        run_folder="run",
        results=[result([good(1, 60.0), good(2, 62.0)])],
    )


@pytest.mark.parametrize("name", ["main", "2026-01-02", "v1.2_x", "a" * 100, "20260102T030405Z-ab12"])
def test_names(name: str) -> None:
    assert saved.check_name("--llmbench-save", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-x", ".hidden", "a b", "ä", "a" * 101, "a\n"])
def test_no_names(name: str) -> None:
    with pytest.raises(InputError, match="not a usable name"):
        saved.check_name("--llmbench-save", name)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert path == saved.path_of(tmp_path, "main", "card")
    document = saved.load(tmp_path, "main", "card")
    assert document["figures"]["decode[code]"]["decode_tok_s"] == {
        "median": 61.0,
        "values": [60.0, 62.0],
        "unit": "tok/s",
    }
    saved.refuse_other(document, copy.deepcopy(KEY))
    reference = saved.references(document, "decode[code]", {"ttft_ms": 0.3}, 0.1)
    assert (reference["decode_tok_s"].value, reference["decode_tok_s"].tolerance) == (61.0, 0.1)
    assert (reference["ttft_ms"].tolerance, reference["ttft_ms"].runs, reference["ttft_ms"].when) == (
        0.3,
        2,
        "2026-01-02",
    )
    assert saved.references(document, "decode[prose]", {}, 0.1) == {}


def test_what_is_not_measured_is_not_saved(tmp_path: Path) -> None:
    half = result([good(1, 60.0), attempt(2, figure(70.0, "a rule"))])
    saved.save(tmp_path, "main", key=KEY, when="2026-01-02", run_folder="run", results=[half])
    assert saved.load(tmp_path, "main", "card")["figures"] == {}


def test_a_name_is_replaced(tmp_path: Path) -> None:
    save(tmp_path)
    saved.save(tmp_path, "main", key=KEY, when="2027-01-02", run_folder="other", results=[])
    assert saved.load(tmp_path, "main", "card")["run"] == "other"


def test_an_unknown_name_lists_what_there_is_oldest_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"saved: none yet.*\n.*--llmbench-save nope"):
        saved.load(tmp_path, "nope", "card")
    for age, name in enumerate(("newest", "middle", "oldest")):
        folder = save(tmp_path, name).parent
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    with pytest.raises(InputError, match="saved: oldest, middle, newest"):
        saved.load(tmp_path, "nope", "card")
    with pytest.raises(InputError, match="no session of card other"):
        saved.load(tmp_path, "newest", "other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "has no object in it, this version reads format 1"),
        ("{}", "has format None"),
        ('{"format": 99}', "has format 99, this version reads format 1"),
    ],
)
def test_files_that_are_none_of_ours(tmp_path: Path, text: str, said: str) -> None:
    save(tmp_path).write_text(text)
    with pytest.raises(InputError, match=said):
        saved.load(tmp_path, "main", "card")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": {"host_id": "there"}}, 'machine.host_id: saved "here", now "there"'),
        ({"machine": {"gpus": []}}, 'machine.gpus: saved [["RTX 5060 Ti", "GPU-1", 180.0]], now []'),
        ({"card": {"sampling": {"temperature": 0.9}}}, "card.sampling.temperature: saved 0.5, now 0.9"),
        ({"card": {"sampling": {"temperature": 0.5, "top_k": 40}}}, "card.sampling.top_k: saved null, now 40"),
        (
            {"card": {"cells": {"decode[code]": {"max_tokens": 128}}}},
            "card.cells.decode[code].max_tokens: saved 512, now 128",
        ),
    ],
)
def test_other_setups_are_refused_with_each_difference(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    save(tmp_path)
    key = copy.deepcopy(KEY)
    for section, values in change.items():
        key[section] |= values
    with pytest.raises(InputError) as caught:
        saved.refuse_other(saved.load(tmp_path, "main", "card"), key)
    assert said in str(caught.value)


def test_all_differences_are_told_at_once(tmp_path: Path) -> None:
    save(tmp_path)
    key = copy.deepcopy(KEY)
    key["machine"]["host_id"] = "there"
    key["card"]["sampling"] = {"temperature": 0.9}
    with pytest.raises(InputError, match=r"(?s)card\.sampling\.temperature.*machine\.host_id"):
        saved.refuse_other(saved.load(tmp_path, "main", "card"), key)


def test_a_cell_that_one_side_lacks_is_no_contradiction(tmp_path: Path) -> None:
    save(tmp_path)
    key = copy.deepcopy(KEY)
    key["card"]["cells"]["prefill[512]"] = {"max_tokens": 16}
    saved.refuse_other(saved.load(tmp_path, "main", "card"), key)
    key["card"]["cells"] = {"prefill[512]": {"max_tokens": 16}}
    saved.refuse_other(saved.load(tmp_path, "main", "card"), key)


def test_nan_is_never_saved(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ValueError, match="Out of range float"):
        saved.save(tmp_path, "main", key={**KEY, "odd": float("nan")}, when="w", run_folder="r", results=[])
    assert json.loads(saved.path_of(tmp_path, "main", "card").read_text())["run"] == "run"
