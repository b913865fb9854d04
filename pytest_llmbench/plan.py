"""From a card to its cells, and to what makes two cards' numbers comparable. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_llmbench import canonical, card_args
from pytest_llmbench.records import CellSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.card.setup import SetupCard
    from pytest_llmbench.card.weights import Weights


def cells(card: SetupCard) -> tuple[CellSpec, ...]:
    """The promised cells, in the order in which they are measured: decode, prefill, concurrency, context, long_answer, fit.

    Ids are the baseline's keys: ``decode[code]``, ``prefill[8192]``, ``conc[4]``, ``ctx[32768-prose]``, ``long_answer``,
    ``fit[4096]``. The warm-ups of decode stand on its first cell. ``fit`` leaves prompt_tokens open:
    it is floor(0.95 N) of the N tokens that one request may use, which the server tells. ``context`` is the size that a fit cell starts with.
    """
    makers = {
        "decode": _decode,
        "prefill": _prefill,
        "concurrency": _concurrency,
        "context": _context,
        "long_answer": _long_answer,
        "fit": _fit,
    }
    return tuple(spec for part, make in makers.items() if part in card.plan.parts for spec in make(card))


def _decode(card: SetupCard) -> Iterator[CellSpec]:
    part = card.plan.decode
    for at, prompt in enumerate(part.prompts):
        yield CellSpec(
            id=f"decode[{prompt}]",
            part="decode",
            runs=part.runs,
            warmups=0 if at else part.warmups,
            prompt_id=prompt,
            max_tokens=part.max_tokens,
            thinking=card.thinking.for_part("decode"),
            ignore_eos=part.ignore_eos,
        )


def _prefill(card: SetupCard) -> Iterator[CellSpec]:
    part = card.plan.prefill
    for depth in part.depths:
        yield CellSpec(
            id=f"prefill[{depth}]",
            part="prefill",
            runs=part.runs,
            prompt_tokens=depth,
            max_tokens=part.max_tokens,
            thinking=card.thinking.for_part("prefill"),
            ignore_eos=part.ignore_eos,
        )


def _concurrency(card: SetupCard) -> Iterator[CellSpec]:
    part = card.plan.concurrency
    for level in part.levels:
        yield CellSpec(
            id=f"conc[{level}]",
            part="concurrency",
            runs=part.rounds,
            requests_per_run=level,
            prompt_id=part.prompt,
            max_tokens=part.max_tokens,
            thinking=card.thinking.for_part("concurrency"),
            ignore_eos=part.ignore_eos,
        )


def _context(card: SetupCard) -> Iterator[CellSpec]:
    part = card.plan.context
    for depth in part.depths:
        for prompt in part.prompts:
            yield CellSpec(
                id=f"ctx[{depth}-{prompt}]",
                part="context",
                runs=part.runs,
                prompt_id=prompt,
                prompt_tokens=depth,
                max_tokens=part.max_tokens,
                thinking=card.thinking.for_part("context"),
                ignore_eos=part.ignore_eos,
            )


def _long_answer(card: SetupCard) -> Iterator[CellSpec]:
    limit = card.plan.long_answer.max_tokens
    thinking = card.thinking.for_part("long_answer")
    yield CellSpec(id="long_answer", part="long_answer", runs=1, max_tokens=limit, thinking=thinking)


def _fit(card: SetupCard) -> Iterator[CellSpec]:
    for size in fit_sizes(card):
        yield CellSpec(
            id=f"fit[{size}]",
            part="fit",
            runs=1,
            max_tokens=card.plan.fit.max_tokens,
            thinking=card.thinking.for_part("fit"),
            context=size,
        )


def fit_sizes(card: SetupCard) -> tuple[int, ...]:
    """Context sizes of the memory test in tokens: as listed, or doubling up to the largest, which is the last."""
    fit = card.plan.fit
    if fit.sizes is not None:
        return fit.sizes
    largest = fit.largest or card.context or fit.smallest
    sizes = []
    size = fit.smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


# ---- identity -----------------------------------------------------------------------------------------------------


def definition(spec: CellSpec) -> dict[str, Any]:
    """A cell without the number of its runs and warm-ups: what makes its numbers comparable."""
    return {key: value for key, value in asdict(spec).items() if key not in {"runs", "warmups"}}


def cell_sha256(spec: CellSpec) -> str:
    """SHA-256 of one cell's definition; what prompts derive from it stay the same when other cells come or go."""
    return canonical.sha256(definition(spec))


def plan_sha256(card: SetupCard) -> str:
    """SHA-256 of all cell definitions of the plan, in order."""
    return canonical.sha256([definition(spec) for spec in cells(card)])


def identity(card: SetupCard, cell_id: str | None = None) -> dict[str, Any]:
    """The card's side of a baseline's key (GATE: "Baselines"): two cards with equal identity may be compared.

    Weights (by hash where stated, else by size and name), server arguments and environment without places (model paths,
    host, port), wrapper, sampling, how thinking is sent, and the cell definitions. Not in it: number of runs, title, notes, sources,
    published figures, thresholds, engine build, hardware. With ``cell_id`` only that cell's definition is in it, so
    that a cell's baseline outlives a change of the others. Raises KeyError for a cell that the plan lacks.
    """
    specs = {spec.id: definition(spec) for spec in cells(card)}
    server, thinking = card.server, card.thinking
    draft = card.model.draft_model
    return {
        "model": _weights(card.model),
        "draft_model": None if draft is None else _weights(draft),
        "engine_kind": card.engine.kind,
        "args": card_args.identity_args(server.args),
        "env": dict(server.env),
        "wrapper": list(server.wrapper),
        "sampling": dict(card.sampling.values),
        "seed": card.sampling.seed,
        "thinking": {"on": thinking.request_fields(on=True), "off": thinking.request_fields(on=False)},
        "cells": specs if cell_id is None else {cell_id: specs[cell_id]},
    }


def identity_sha256(card: SetupCard, cell_id: str | None = None) -> str:
    """SHA-256 of ``identity``; the order of keys and 1 against 1.0 make no difference."""
    return canonical.sha256(identity(card, cell_id))


def _weights(weights: Weights) -> dict[str, Any]:
    if weights.sha256 is not None:
        return {"sha256": weights.sha256}
    file = None if weights.file is None else weights.file.model_dump(mode="json", exclude_none=True)
    return {"name": weights.name, "file": file, "size_bytes": weights.size_bytes, "quantization": weights.quantization}
