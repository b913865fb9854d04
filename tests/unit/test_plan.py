"""Cells of a plan, and the card's side of a baseline's key."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_llmbench import canonical
from pytest_llmbench.card import SetupCard
from pytest_llmbench.plan import (
    cell_sha256,
    cells,
    definition,
    fit_sizes,
    identity,
    identity_sha256,
    plan_sha256,
)

ALL_PARTS = ["fit", "long_answer", "context", "concurrency", "prefill", "decode"]  # not in their order on purpose
BASE: dict[str, Any] = {
    "llmbench_card": 1,
    "id": "small",
    "title": "A small card",
    "model": {"name": "M", "file": {"path": "~/m.gguf"}, "sha256": "1" * 64},
    "engine": {"kind": "llama-server", "version": "b1"},
    "server": {"args": ["-m", "m.gguf", "-c", "16384", "-np", "1", "--port", "8080"], "env": {"A": "1"}},
    "sampling": {"values": {"temperature": 1.0, "top_k": 20}, "seed": 42},
    "thinking": {"send_off": {"reasoning_effort": "none"}},
    "plan": {
        "parts": ALL_PARTS,
        "prefill": {"depths": [512, 8192], "ignore_eos": True},
        "concurrency": {"levels": [1, 4]},
        "context": {"depths": [1024, 4096]},
        "long_answer": {"max_tokens": 2048},
    },
}


def card(**changes: Any) -> SetupCard:
    """BASE with some fields (``plan__decode__runs``) replaced."""
    data = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *way, last = dotted.split("__")
        place = data
        for key in way:
            place = place.setdefault(key, {})
        place[last] = value
    return SetupCard.model_validate_json(json.dumps(data))


def test_ids_and_order_of_cells() -> None:
    assert [spec.id for spec in cells(card())] == [
        "decode[code]",
        "decode[prose]",
        "prefill[512]",
        "prefill[8192]",
        "conc[1]",
        "conc[4]",
        "ctx[1024-code]",
        "ctx[1024-prose]",
        "ctx[4096-code]",
        "ctx[4096-prose]",
        "long_answer",
        "fit[4096]",
        "fit[8192]",
        "fit[16384]",
    ]


def test_cells_carry_what_the_plan_says() -> None:
    spec = {one.id: one for one in cells(card(thinking__parts={"long_answer": True}))}
    code, prose = spec["decode[code]"], spec["decode[prose]"]
    assert (code.warmups, prose.warmups) == (1, 0)
    assert (code.requests, prose.requests) == (3, 2)
    assert (code.prompt_id, code.prompt_tokens, code.max_tokens) == ("code", None, 512)
    assert (spec["prefill[8192]"].prompt_tokens, spec["prefill[8192]"].runs) == (8192, 3)
    assert (spec["prefill[8192]"].ignore_eos, code.ignore_eos) == (True, False)
    assert (spec["conc[4]"].requests_per_run, spec["conc[4]"].requests, spec["conc[4]"].prompt_id) == (4, 8, "prose")
    assert (spec["ctx[4096-code]"].prompt_tokens, spec["ctx[4096-code]"].prompt_id) == (4096, "code")
    assert (spec["long_answer"].runs, spec["long_answer"].max_tokens, spec["long_answer"].thinking) == (1, 2048, True)
    assert (spec["fit[8192]"].context, spec["fit[8192]"].prompt_tokens, spec["fit[8192]"].max_tokens) == (
        8192,
        None,
        96,
    )


@pytest.mark.parametrize(
    ("fit", "sizes"),
    [
        ({}, (4096, 8192, 16384)),
        ({"largest": 40960}, (4096, 8192, 16384, 32768, 40960)),
        ({"smallest": 2048, "largest": 2048}, (2048,)),
        ({"sizes": [3000, 7000]}, (3000, 7000)),
    ],
)
def test_fit_doubles_up_to_the_largest(fit: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert fit_sizes(card(plan__fit=fit)) == sizes


SAME: list[dict[str, Any]] = [
    {"plan__decode": {"runs": 5, "warmups": 0}},
    {"plan__prefill__runs": 7},
    {"plan__concurrency__rounds": 9},
    {"plan__parts": [*reversed(ALL_PARTS)]},
    {"id": "other", "title": "Other", "notes": ["n"]},
    {"thresholds": {"decode[code]": {"decode_tok_s": {"floor": 1}}}},
    {"published": [{"figure": "x", "value": 1, "source": "s"}]},
    {"engine__version": "b2"},
    {"hardware": {"cpu": "another"}},
    {"model__file": {"path": "/elsewhere/n.gguf"}, "model__name": "N"},
    {"server__args": ["-m", "/elsewhere/n.gguf", "-c", "16384", "-np", "1", "--port", "9"]},
    {"sampling": {"values": {"top_k": 20, "temperature": 1}, "seed": 42, "source": "s"}},
    {"server__sources": {"-c": "s"}},
]
OTHER: list[dict[str, Any]] = [
    {"model__sha256": "2" * 64},
    {"server__args": ["-m", "m.gguf", "-c", "16384", "-np", "1", "-ub", "256"]},
    {"server__env": {"A": "2"}},
    {"server__wrapper": ["taskset", "-c", "0"]},
    {"sampling__values": {"temperature": 0.7, "top_k": 20}},
    {"sampling__seed": 43},
    {"thinking__send_off": {}},
    {"thinking__default": True},
    {"plan__decode__max_tokens": 256},
    {"plan__decode__prompts": ["prose"]},
    {"plan__decode__ignore_eos": True},
    {"plan__prefill__depths": [512]},
    {"model__draft_model": {"name": "D"}},
]


@pytest.mark.parametrize("changes", SAME, ids=",".join)
def test_identity_stays(changes: dict[str, Any]) -> None:
    assert identity(card(**changes)) == identity(card())
    assert identity_sha256(card(**changes)) == identity_sha256(card())


@pytest.mark.parametrize("changes", OTHER, ids=",".join)
def test_identity_differs(changes: dict[str, Any]) -> None:
    assert identity_sha256(card(**changes)) != identity_sha256(card())


def test_identity_of_one_cell_outlives_a_change_of_others() -> None:
    more = card(plan__prefill__depths=[512, 2048, 8192])
    assert identity_sha256(more) != identity_sha256(card())
    assert identity_sha256(more, "prefill[512]") == identity_sha256(card(), "prefill[512]")
    assert identity_sha256(card(), "prefill[512]") != identity_sha256(card(), "prefill[8192]")
    with pytest.raises(KeyError):
        identity(card(), "prefill[2048]")


def test_unhashed_weights_are_told_apart_by_size_and_file() -> None:
    one, other = card(model={"name": "M", "size_bytes": 1}), card(model={"name": "M", "size_bytes": 2})
    assert identity_sha256(one) != identity_sha256(other)


def test_plan_digest_has_definitions_and_no_counts_of_runs() -> None:
    assert plan_sha256(card(plan__decode__runs=9)) == plan_sha256(card())
    assert plan_sha256(card(plan__decode__max_tokens=500)) != plan_sha256(card())
    fewer = cells(card(plan__parts=["decode"], plan__decode__runs=9))
    assert [cell_sha256(spec) for spec in fewer] == [cell_sha256(spec) for spec in cells(card())[:2]]
    assert {"runs", "warmups"}.isdisjoint(definition(cells(card())[0]))


def test_digests_do_not_depend_on_spelling_or_process() -> None:
    assert canonical.sha256({"b": 1.0, "a": (True, None)}) == canonical.sha256({"a": [True, None], "b": 1})
    assert canonical.sha256({"a": 1}) != canonical.sha256({"a": "1"})
    assert canonical.sha256({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_plan_is_importable_on_its_own_and_loads_no_pydantic() -> None:
    code = "import sys, pytest_llmbench.plan; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
