"""Report documents as sessions leave them, cut down to what the history reads."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

IDENTITY: dict[str, Any] = {
    "card_id": "card",
    "card": {
        "model": {"sha256": "ab" * 32},
        "args": ["-c", "8192", "-np", "1"],
        "sampling": {"temperature": 0.5, "top_k": 40},
        "cells": {
            "decode[code]": {"id": "decode[code]", "max_tokens": 512},
            "prefill[2048]": {"id": "prefill[2048]", "prompt_tokens": 2048},
        },
    },
    "machine": {"host_id": "here", "cpu": "a CPU", "gpus": [["RTX 3090", "GPU-1", 350.0]]},
}
ENVIRONMENT: dict[str, Any] = {
    "engine": {"version": "b12223", "sha256": "11" * 32, "libraries_sha256": None},
    "machine": {"driver": "580.1", "kernel": "6.1", "os": "Debian"},
    "software": {"pytest_llmbench": "0.1.0", "python": "3.11.7"},
}


def figure(name: str, median: float | None, **more: Any) -> dict[str, Any]:
    lower = name.endswith("_ms")
    return {
        "name": name,
        "unit": "ms" if lower else "tok/s",
        "direction": "lower" if lower else "higher",
        "definition": "as told",
        "median": median,
        "values": [] if median is None else [median * 0.99, median, median * 1.01],
        "promised_runs": 3,
        "cv": None,
        "reasons": [] if median is not None else ["run 1 of 3: too short"],
        "label": None,
        "verdict": None if median is None else "ok",
        "reference": None,
        "change": None,
        "explanation": [],
        **more,
    }


def attempt(run: int, *, error: str | None = None, guard: str = "clean", again: int = 0) -> dict[str, Any]:
    return {"run": run, "error": error, "guard": guard, "again": again, "figures": [{"reasons": []}]}


def cell(name: str, figures: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "part": name.partition("[")[0],
        "status": "measured",
        "reasons": [],
        "figures": figures,
        "attempts": [attempt(1), attempt(2), attempt(3)],
        **more,
    }


def at(minutes: float) -> str:
    return (FIRST + timedelta(minutes=minutes)).isoformat()


def document(
    number: int,
    *,
    decode: float | None = 60.0,
    ttft: float | None = 100.0,
    prefill: float | None = 2000.0,
    minutes: float | None = None,
    identity: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Session ``S0007``: an hour after the one before it unless minutes says otherwise."""
    start = 60.0 * number if minutes is None else minutes
    session = f"S{number:04}"
    made = identity or IDENTITY
    cells = [
        cell("decode[code]", [figure("decode_tok_s", decode), figure("ttft_ms", ttft)]),
        cell("prefill[2048]", [figure("prefill_tok_s", prefill)]),
    ]
    return {
        "llmbench_report": 1,
        "tool": "pytest-llmbench 0.1.0",
        "session": session,
        "started": at(start),
        "finished": at(start + 5),
        "complete": True,
        "probe": False,
        "plan_changes": {},
        "continues": None,
        "card": {"id": made["card_id"]},
        "contract": {"identity": copy.deepcopy(made)},
        "environment": copy.deepcopy(environment or ENVIRONMENT),
        "cells": [one | {"sessions": [session]} for one in cells],
        "problems": [],
        **more,
    }


def changed(path: str, value: Any, content: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy of the identity (or another JSON object) with the value at a dotted path replaced."""
    made = copy.deepcopy(IDENTITY if content is None else content)
    *names, last = path.split(".")
    inner = made
    for name in names:
        inner = inner[name]
    inner[last] = value
    return made
