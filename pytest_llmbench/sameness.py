"""What two sessions must share before their numbers may be compared, or stand in one document.

``refuse_known`` tells what can be told without a device or a program, so that a wrong call ends before anything is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_llmbench import machine, plan, prompts, resume
from pytest_llmbench.history import saved
from pytest_llmbench.history.file import BaselineFile
from pytest_llmbench.journal import plain
from pytest_llmbench.measure import request
from pytest_llmbench.measure.validity import Bounds
from pytest_llmbench.runner import why_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.machine import Gpu
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.resume import Continue


def bounds(card: SetupCard) -> Bounds:
    """The card's validity rules."""
    return Bounds(
        decode_within=card.client_check.decode_within,
        ttft_above_fraction=card.client_check.ttft_above_fraction,
        ttft_above_ms=card.client_check.ttft_above_ms,
        min_tokens=card.validity.min_tokens,
        client_lag_ms=card.validity.client_lag_ms,
    )


def identity(card: SetupCard, cells: Iterable[CellSpec], weights: Mapping[str, Any]) -> dict[str, Any]:
    """What makes numbers comparable; of the plan only these cells. weights: of ``model`` and ``draft_model``, by hash."""
    whole = plan.identity(card)
    promised = {spec.id for spec in cells}
    return whole | {
        **weights,
        "cells": {cell: definition for cell, definition in whole["cells"].items() if cell in promised},
        "prompts_version": prompts.PROMPTS_VERSION,
    }


def host(host_id: str, cpu: str | None, gpus: Iterable[Gpu]) -> dict[str, Any]:
    """The machine's side of the key."""
    return {"host_id": host_id, "cpu": cpu, "gpus": [[gpu.name, gpu.uuid, gpu.power_limit_w] for gpu in gpus]}


def terms(card: SetupCard, cells: Iterable[CellSpec], key: Any, engine: Any) -> dict[str, Any]:
    """What a resumed or supplemented run must share with the earlier one. key: card and machine."""
    return {
        "identity": key,
        "engine": engine,
        "request_fields": {spec.id: request.fields(card, spec) for spec in cells},
        "validity": plain(bounds(card)),
    }


def refuse_known(
    card: SetupCard,
    cells: Sequence[CellSpec],
    storage: Path,
    *,
    compare: str | None,
    go_on: Continue | None,
    baseline_file: Path | None = None,
) -> None:
    """Raise InputError where the earlier run, saved session or file of baselines is another setup's, as far as is known.

    Known are the card, the host and the CPU; GPUs, engine and weights (unless the card states their hash) are taken as
    equal here and compared before the first request.
    """
    if compare is not None:
        document = saved.load(storage, compare, card.id)
        saved.refuse_other(document, _key(card, cells, document["key"]))
    if baseline_file is not None:
        file = BaselineFile.load(baseline_file)
        file.refuse_other(_key(card, cells, file.identity()), baseline_file)
    if go_on is not None:
        earlier = resume.read(resume.find(storage, card.id, go_on))
        old = earlier.contract
        key = _key(card, cells, old["identity"])
        resume.refuse_other(earlier, terms(card, cells, key, old.get("engine")), go_on)
        resume.choose(earlier, cells, go_on, lambda spec, last: why_again(spec, last)[0] is None)


def _key(card: SetupCard, cells: Iterable[CellSpec], old: dict[str, Any]) -> dict[str, Any]:
    # Of weights whose hash no card states, the earlier run's are taken.
    files = {"model": card.model, "draft_model": card.model.draft_model}
    stated = {name: {"sha256": one.sha256} for name, one in files.items() if one is not None and one.sha256}
    unstated = {name for name, one in files.items() if one is not None and not one.sha256}
    weights = stated | {name: old["card"].get(name) for name in unstated}
    here = host(machine.host_id(), machine.cpu_name(), ())
    return {
        "card_id": card.id,
        "card": identity(card, cells, weights),
        "machine": here | {"gpus": old["machine"].get("gpus")},
    }
