"""Keys of figures, and differences in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from documents import ENVIRONMENT, IDENTITY, changed

from pytest_llmbench.history import keys


def test_a_cell_outlives_a_change_of_the_others() -> None:
    other = changed("card.cells.prefill[2048].prompt_tokens", 4096)
    assert keys.cell_key(IDENTITY, "decode[code]") == keys.cell_key(other, "decode[code]")
    assert keys.cell_key(IDENTITY, "prefill[2048]") != keys.cell_key(other, "prefill[2048]")
    fewer = copy.deepcopy(IDENTITY)
    del fewer["card"]["cells"]["prefill[2048]"]
    assert keys.cell_key(fewer, "decode[code]") == keys.cell_key(IDENTITY, "decode[code]")
    assert keys.card_key(fewer) == keys.card_key(IDENTITY)


@pytest.mark.parametrize(
    "path", ["card.model.sha256", "card.args", "card.sampling.temperature", "card.cells.decode[code].max_tokens"]
)
def test_what_numbers_depend_on_is_in_the_key(path: str) -> None:
    assert keys.cell_key(changed(path, ["x"]), "decode[code]") != keys.cell_key(IDENTITY, "decode[code]")


@pytest.mark.parametrize(
    "value", [["RTX 3090", "GPU-1", 280.0], ["RTX 3090", "GPU-2", 350.0], ["A100", "GPU-1", 350.0]]
)
def test_another_gpu_or_power_limit_is_another_machine(value: list[Any]) -> None:
    assert keys.machine_key(changed("machine.gpus", [value])) != keys.machine_key(IDENTITY)


def test_keys_do_not_depend_on_spelling() -> None:
    spelled: dict[str, Any] = changed("card.sampling", {"top_k": 40.0, "temperature": 0.5})
    spelled = changed("machine.gpus", (("RTX 3090", "GPU-1", 350),), spelled)
    assert keys.cell_keys(spelled) == keys.cell_keys(IDENTITY)
    assert keys.machine_key(spelled) == keys.machine_key(IDENTITY)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("machine.host_id", "there", "another machine: host here, this one is there"),
        ("machine.cpu", None, "CPU: a CPU -> None"),
        ("machine.gpus", [["RTX 3090", "GPU-1", 280.0]], "GPU: RTX 3090 (GPU-1, 350 W) -> RTX 3090 (GPU-1, 280 W)"),
        ("machine.gpus", [], "GPU: RTX 3090 (GPU-1, 350 W) -> none"),
        ("card.args", ["-c", "16384", "-np", "1", "-fa", "on"], "server arguments: was -c 8192, is -c 16384 -fa on"),
        ("card.args", ["-np", "1", "-c", "8192"], "server arguments: in another order"),
        ("card.sampling.temperature", 0.7, "sampling.temperature: 0.5 -> 0.7"),
        ("card.model.sha256", "cd" * 32, "model.sha256: abababababab -> cdcdcdcdcdcd"),
        ("card.cells.decode[code].max_tokens", 128, "decode[code]: max_tokens: 512 -> 128"),
    ],
)
def test_a_difference_is_one_line(path: str, value: Any, line: str) -> None:
    assert keys.differences(IDENTITY, changed(path, value)) == [line]


def test_a_cell_of_one_side_is_no_difference() -> None:
    fewer = copy.deepcopy(IDENTITY)
    del fewer["card"]["cells"]["prefill[2048]"]
    assert keys.differences(IDENTITY, fewer) == []


def test_long_lists_are_cut() -> None:
    lines = [f"line {n}" for n in range(12)]
    assert keys.capped(lines[:8]) == tuple(lines[:8])
    assert keys.capped(lines) == (*lines[:7], "and 5 more differences")


def facts(**engine: Any) -> dict[str, Any]:
    return keys.attributes(changed("engine", ENVIRONMENT["engine"] | engine, ENVIRONMENT))


def test_what_changed_since() -> None:
    assert keys.changes([facts()], facts()) == ()
    assert keys.changes([facts()], facts(version="b12301", sha256="22" * 32)) == ("engine b12223 -> b12301",)
    assert keys.changes([facts(), facts(version="b12224")], facts(version="b3")) == ("engine b12223 or b12224 -> b3",)


def test_a_build_that_tells_no_new_version_is_told_by_its_program() -> None:
    assert keys.changes([facts()], facts(sha256="22" * 32)) == ("engine program 111111111111 -> 222222222222",)


def test_what_some_sessions_of_the_baseline_had_explains_nothing() -> None:
    assert keys.changes([facts(), facts(version="b3")], facts(version="b3")) == ()
    assert keys.changes([], facts()) == ()


def test_an_unknown_attribute_is_left_out() -> None:
    assert "engine libraries" not in facts()
    assert keys.attributes({}) == {}


@pytest.mark.parametrize(
    ("gpus", "label"),
    [
        ([], "a CPU (here)"),
        ([["A", None, None], ["A", None, None]], "2x A (here)"),
        ([["A", "1", 1], ["B", "2", 2]], "A + B (here)"),
    ],
)
def test_a_machine_in_few_words(gpus: list[Any], label: str) -> None:
    assert keys.machine_label(changed("machine.gpus", gpus)["machine"]) == label
    assert keys.machine_label(None) == "unknown"
