"""What is promised, and that nothing promised ends in silence."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace

import pytest
from cells import CODE, good, result

from pytest_llmbench import contract
from pytest_llmbench.against import cards
from pytest_llmbench.contract import Contract, PromisedPrompt
from pytest_llmbench.records import CellSpec, Prompt

PREFILL = CellSpec(id="prefill[8192]", part="prefill", runs=3, prompt_tokens=8192, max_tokens=16)
ROUNDS = CellSpec(id="conc[4]", part="concurrency", runs=2, requests_per_run=4)
PROMPT = Prompt("the whole text", "0" * 64, 8192, exact=True, nonce="six words")
PROMISE = Contract(
    "card",
    (replace(CODE, warmups=1), PREFILL, ROUNDS),
    (("fit[4096]", "not among --llmbench-parts"),),
    (PromisedPrompt(PREFILL.id, 1, 0, PROMPT),),
    {"validity": {"min_tokens": 256}},
)


def test_runs_and_requests_are_counted() -> None:
    document = PROMISE.to_json()
    assert document["guarded_runs"] == 2 + 3 + 2
    assert document["requests"] == (1 + 2) + 3 + 2 * 4


def test_prompts_stand_by_hash_and_size_not_by_text() -> None:
    document = PROMISE.to_json()
    assert "the whole text" not in json.dumps(document)
    assert document["prompts"] == [
        {"cell": "prefill[8192]", "run": 1, "request": 0, "sha256": "0" * 64, "tokens": 8192, "exact": True}
    ]
    assert document["left_out"] == [{"cell": "fit[4096]", "why": "not among --llmbench-parts"}]


def test_the_hash_is_of_everything_else() -> None:
    document = PROMISE.to_json()
    rest = copy.deepcopy(document)
    assert rest.pop("sha256") == contract.digest(rest)
    assert document == PROMISE.to_json()
    for changed in (
        replace(PROMISE, card="other"),
        replace(PROMISE, cells=PROMISE.cells[:2]),
        replace(PROMISE, left_out=()),
        replace(PROMISE, prompts=(PromisedPrompt(PREFILL.id, 1, 0, replace(PROMPT, sha256="1" * 64)),)),
        replace(PROMISE, terms={"validity": {"min_tokens": 255}}),
    ):
        assert changed.to_json()["sha256"] != document["sha256"]


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert contract.digest({"a": 1, "b": [1, 2]}) == contract.digest({"b": [1, 2], "a": 1})
    assert contract.digest({"b": [1, 2]}) != contract.digest({"b": [2, 1]})


def test_every_field_of_a_cell_is_in_the_contract() -> None:
    document = contract.cell_to_json(PREFILL)
    assert set(document) == {field.name for field in fields(CellSpec)}
    assert CellSpec(**document) == PREFILL


@pytest.mark.parametrize("measured", [[], [CODE], [CODE, PREFILL]])
def test_a_cell_without_a_result_is_missing(measured: list[CellSpec]) -> None:
    results = [result([good(run, 60.0) for run in range(1, spec.runs + 1)], spec) for spec in measured]
    settled = contract.settle([CODE, PREFILL], results)
    assert list(settled) == ["decode[code]", "prefill[8192]"]
    assert list(settled.values()) == ["measured" if s in measured else "missing" for s in (CODE, PREFILL)]


def test_a_result_that_was_not_promised_settles_nothing() -> None:
    assert contract.settle([PREFILL], [result([good(1, 60.0), good(2, 60.0)])]) == {"prefill[8192]": "missing"}


def test_two_contracts_tell_whether_their_prompts_are_the_same_texts() -> None:
    other = replace(PROMISE, prompts=(PromisedPrompt(PREFILL.id, 1, 0, replace(PROMPT, sha256="1" * 64)),))
    fewer = replace(PROMISE, prompts=())
    assert cards.prompts(PROMISE, PROMISE) is None
    assert cards.prompts(PROMISE, fewer) is None
    assert cards.prompts(PROMISE, other) == f"prompts of {PREFILL.id}: other texts of the same length"
