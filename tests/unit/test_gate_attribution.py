"""A change broken down: shares only where a model stands behind them, the rest honest, the facts from a real report's shape."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_llmbench.gate import facts
from pytest_llmbench.gate.attribution import ControlChange, attribute, tokens_per_pass


def test_a_lower_clock_explains_a_slower_prefill() -> None:
    found = attribute("prefill_tok_s", 1000.0, 899.0, {"sm_mhz": 2550}, {"sm_mhz": 2310})
    assert found.lines[0] == "clock 2,550 -> 2,310 MHz explains about -9.4% of -10.1%"
    assert found.lines[1] == "rest, not explained: -0.8%"


def test_shares_add_up_in_logs() -> None:
    before = {"predicted_n": 512, "draft_n": 400, "draft_n_accepted": 300, "memory_mhz": 9000, "sm_mhz": 2500}
    after = {"predicted_n": 512, "draft_n": 410, "draft_n_accepted": 250, "memory_mhz": 8800, "sm_mhz": 2400}
    found = attribute("decode_tok_s", 60.0, 45.0, before, after)
    whole = math.fsum(math.log1p(c.share) for c in found.contributions) + math.log1p(found.rest)
    assert whole == pytest.approx(math.log(45 / 60))
    assert [c.name for c in found.contributions] == ["drafts", "memory_mhz"]
    assert found.contributions[0].share == pytest.approx((512 / 262) / (512 / 212) - 1)
    assert "acceptance 75% -> 61%" in found.lines[0]
    # The SM clock has no model for decode: it is said, without a share.
    assert found.also == ("clock 2,500 -> 2,400 MHz",)


def test_the_control_speaks_for_the_clocks() -> None:
    before, after = {"sm_mhz": 2550, "temperature_c": 60}, {"sm_mhz": 2310, "temperature_c": 84}
    found = attribute("prefill_tok_s", 1000.0, 900.0, before, after, ControlChange(-0.08, 1.0, pays=True))
    assert [c.name for c in found.contributions] == ["control"]
    assert found.rest == pytest.approx(0.9 / 0.92 - 1)
    assert found.also == ("clock 2,550 -> 2,310 MHz", "GPU temperature 60 -> 84 °C")
    unused = attribute("prefill_tok_s", 1000.0, 900.0, {}, {}, ControlChange(-0.08, 0.0, pays=False))
    assert unused.contributions == ()
    assert unused.lines == ("changed since the baseline: control -8.0% (not used for this figure)",)


def test_ttft_grows_with_prompt_queue_and_a_lower_clock() -> None:
    before = {"prompt_tokens": 1000, "queue_ms": 10.0, "sm_mhz": 2000}
    after = {"prompt_tokens": 1100, "queue_ms": 110.0, "sm_mhz": 1900}
    found = attribute("ttft_ms", 1000.0, 1300.0, before, after)
    shares = {c.name: c.share for c in found.contributions}
    assert shares == pytest.approx({"prompt": 0.1, "queue": 0.1, "sm_mhz": 2000 / 1900 - 1})
    assert found.rest == pytest.approx(1.3 / (1.1 * 1.1 * 2000 / 1900) - 1)
    # None of these has a model for decode.
    assert attribute("decode_tok_s", 10.0, 9.0, before, after).contributions == ()


def test_more_than_the_whole_leaves_a_rest_of_the_other_sign() -> None:
    found = attribute("prefill_tok_s", 1000.0, 950.0, {"sm_mhz": 2000}, {"sm_mhz": 1800})
    assert found.rest == pytest.approx(0.95 / 0.9 - 1)
    assert found.lines[1] == "rest, not explained: +5.6%"


def test_what_has_no_model_is_listed_and_noise_is_not() -> None:
    before: dict[str, Any] = {
        "engine": "b1", "layers_offloaded": 48, "weights_mib": {"CUDA0": 14000.0}, "power_limit_w": 180,
        "cpu_pressure": 0.01, "temperature_c": 60, "flash_attention": True, "cache_types": ["q8_0", "q8_0"],
    }  # fmt: skip
    after: dict[str, Any] = {
        "engine": "b2", "layers_offloaded": 40, "weights_mib": {"CUDA0": 12000.0, "CPU": 2000.0}, "power_limit_w": 150,
        "cpu_pressure": 0.4, "temperature_c": 61, "flash_attention": False, "cache_types": ("q8_0", "q8_0"),
    }  # fmt: skip
    found = attribute("decode_tok_s", 60.0, 50.0, before, after)
    assert found.contributions == ()
    assert found.rest == pytest.approx(50 / 60 - 1)
    assert found.also == (
        "engine b1 -> b2",
        "layers on the GPU 48 -> 40",
        "weights CUDA0 14,000 -> CUDA0 12,000, CPU 2,000 MiB",
        "flash attention on -> off",
        "power limit 180 -> 150 W",
        "CPU pressure 1% -> 40%",
    )
    assert found.lines == (f"changed since the baseline: {'; '.join(found.also)}",)


def test_another_binary_of_the_same_version_is_said() -> None:
    same = {"engine": "0.6.0-dev"}
    found = attribute("decode_tok_s", 60.0, 50.0, same | {"engine_sha256": "a"}, same | {"engine_sha256": "b"})
    assert found.also == ("engine: the same version 0.6.0-dev, another binary",)
    assert attribute("decode_tok_s", 60.0, 50.0, same | {"engine_sha256": "a"}, same).also == ()


@pytest.mark.parametrize("name", ["steal_share", "foreign_share", "cpu_pressure", "throttled_share", "temperature_c"])
def test_a_burden_is_named_only_where_it_grew(name: str) -> None:
    less, more = (40, 80) if name == "temperature_c" else (0.1, 0.6)
    assert attribute("decode_tok_s", 60.0, 50.0, {name: less}, {name: more}).also
    assert not attribute("decode_tok_s", 60.0, 50.0, {name: more}, {name: less}).also


@pytest.mark.parametrize(("value", "named"), [(57.0, True), (20.0, False)])
def test_a_small_burden_is_beside_the_point_of_a_great_change(value: float, *, named: bool) -> None:
    found = attribute("decode_tok_s", 60.0, value, {"cpu_pressure": 0.01}, {"cpu_pressure": 0.04})
    assert bool(found.also) is named


@pytest.mark.parametrize(
    ("predicted", "accepted", "found"), [(100, 0, 1.0), (100, 50, 2.0), (100, None, None), (100, 100, None)]
)
def test_tokens_per_pass(predicted: int, accepted: int | None, found: float | None) -> None:
    assert tokens_per_pass({"predicted_n": predicted, "draft_n_accepted": accepted}) == found


@pytest.mark.parametrize(("reference", "value"), [(0.0, 1.0), (1.0, -1.0), (1.0, math.nan)])
def test_a_change_that_has_no_share_is_refused(reference: float, value: float) -> None:
    with pytest.raises(ValueError, match="has no share"):
        attribute("decode_tok_s", reference, value, {}, {})


# ---- facts ----


def attempt(run: int, *, guard: str = "clean", sm: int | None = 2500, **details: Any) -> dict[str, Any]:
    gpu = {
        "uuid": "GPU-1",
        "sm_max_mhz": sm,
        "memory_max_mhz": 9000,
        "power_limit_w": 180.0,
        "temperature_max_c": 60 + run,
    }
    watch = {"gpus": [gpu], "max_pressure": {"cpu_some": 0.1 * run}, "max_steal_share": 0.0, "ours_share": 1.9}
    return {"run": run, "error": None, "guard": guard, "server_start": 2, "details": {"watch": watch, **details}}


def document(*attempts: dict[str, Any]) -> dict[str, Any]:
    log = {
        "layers": [48, 49],
        "buffers": [
            {"owner": "model", "device": "CUDA0", "kind": "weights", "mib": 13000.5},
            {"owner": "draft", "device": "CUDA0", "kind": "weights", "mib": 500.0},
            {"owner": "model", "device": "CUDA0", "kind": "kv", "mib": 800.0},
        ],
        "n_ctx": 32768,
        "n_slots": None,
        "flash_attention": True,
        "cache_types": None,
    }
    return {
        "cells": [{"id": "decode[code]", "attempts": list(attempts)}],
        "environment": {
            "engine_log": {"server-1.log": {"n_ctx": 1}, "server-2.log": log},
            "engine": {"version": "b1", "sha256": "abc"},
            "machine": {"driver": None, "kernel": "6.1"},
        },
    }


def test_the_facts_of_a_cell() -> None:
    made = document(
        attempt(1, prompt_tokens=360, completion_tokens=512, draft_n=400, draft_n_accepted=300),
        attempt(2, guard="disturbed", sm=300, prompt_tokens=1),
        attempt(3, prompt_tokens=360, completion_tokens=512, draft_n=410, draft_n_accepted=310),
    )
    assert facts.of_cell(made, "decode[code]") == {
        "sm_mhz": 2500, "memory_mhz": 9000, "power_limit_w": 180.0, "temperature_c": 63,
        "cpu_pressure": pytest.approx(0.2), "steal_share": 0.0, "ours_share": 1.9,
        "prompt_tokens": 360, "predicted_n": 512, "draft_n": 405, "draft_n_accepted": 305,
        "layers_offloaded": 48, "layers": 49, "weights_mib": {"CUDA0": 13500.5}, "kv_mib": {"CUDA0": 800.0},
        "n_ctx": 32768, "flash_attention": True,
        "engine": "b1", "engine_sha256": "abc", "kernel": "6.1",
    }  # fmt: skip


def test_unknown_is_not_in_it_and_never_0() -> None:
    made = document(attempt(1, sm=None))
    found = facts.of_cell(made, "decode[code]")
    assert "sm_mhz" not in found
    assert "draft_n" not in found
    assert "driver" not in found
    bare = {"cells": [{"id": "x", "attempts": []}]}
    assert facts.of_cell(bare, "x") == {}
    with pytest.raises(KeyError, match="has no cell 'y'; it has x"):
        facts.of_cell(bare, "y")


def test_of_several_gpus_the_slowest_counts() -> None:
    made = document(attempt(1))
    gpus = made["cells"][0]["attempts"][0]["details"]["watch"]["gpus"]
    gpus.append(gpus[0] | {"uuid": "GPU-2", "sm_max_mhz": 1200, "temperature_max_c": 85})
    found = facts.of_cell(made, "decode[code]")
    assert (found["sm_mhz"], found["temperature_c"]) == (1200, 85)
