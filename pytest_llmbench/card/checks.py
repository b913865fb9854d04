"""What a card promises must be possible: checks over more than one section. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pytest_llmbench.card.base import Fault
from pytest_llmbench.card.parts import FIGURES
from pytest_llmbench.plan import cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.card.parts import Limit, PartName
    from pytest_llmbench.card.setup import SetupCard


def faults(card: SetupCard) -> list[Fault]:
    """Everything impossible in the card, by field."""
    found = [*_fit(card), *_depths(card), *_concurrency(card)]
    return found or list(_thresholds(card))


def nearest(word: str, known: list[str]) -> str:
    """A remedy that names the nearest known word, if one is near, and all of them."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.55)
    return (f"did you mean {found[0]!r}? " if found else "") + f"known: {', '.join(known)}"


def near(word: str, known: Sequence[str]) -> str:
    """The nearest known word in brackets, if one is near: of a list too long to be shown."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _fit(card: SetupCard) -> Iterator[Fault]:
    fit = card.plan.fit
    if "fit" not in card.plan.parts or fit.sizes is not None:
        return
    largest = fit.largest or card.context
    if largest is None:
        remedy = "write plan.fit.largest or plan.fit.sizes, or -c in server.args"
        yield Fault("plan.fit", None, "the card names no context to go up to", remedy)
    elif largest < fit.smallest:
        remedy = "lower plan.fit.smallest"
        yield Fault("plan.fit.smallest", fit.smallest, f"is above the card's context ({largest})", remedy)


def _depths(card: SetupCard) -> Iterator[Fault]:
    """Prompts and answers that one slot cannot hold."""
    room = card.slot_context
    if room is None:
        return
    slots = "" if room == card.context else f" (-c {card.context} in {card.slots} slots without -kvu)"
    plan = card.plan
    parts = plan.parts
    prompts: list[tuple[str, int, int]] = []
    if "prefill" in parts:
        prompts += [
            (f"plan.prefill.depths[{at}]", one, plan.prefill.max_tokens) for at, one in enumerate(plan.prefill.depths)
        ]
    if "context" in parts:
        prompts += [
            (f"plan.context.depths[{at}]", one, plan.context.max_tokens) for at, one in enumerate(plan.context.depths)
        ]
    for field, depth, answer in prompts:
        if depth + answer > room:
            reason = f"a prompt of {depth} and an answer of {answer} tokens need {depth + answer}; one request may use {room}{slots}"
            yield Fault(
                field,
                depth,
                reason,
                f"lower the depth to at most {max(room - answer, 0)}, raise -c, or leave the part out",
            )
    for part in ("decode", "concurrency", "long_answer"):
        answer_limit = getattr(plan, part).max_tokens
        if part in parts and answer_limit is not None and answer_limit >= room:
            reason = f"the answer alone fills the {room} tokens that one request may use{slots}"
            yield Fault(f"plan.{part}.max_tokens", answer_limit, reason, "lower it or raise -c")


def _concurrency(card: SetupCard) -> Iterator[Fault]:
    """A shared cache that the answers of one round overflow would end all of them at once."""
    part = card.plan.concurrency
    if "concurrency" not in card.plan.parts or card.context is None or not card.unified_cache or card.slots is None:
        return
    for at, level in enumerate(part.levels):
        at_once = min(level, card.slots)
        if at_once * part.max_tokens >= card.context > part.max_tokens:
            reason = (
                f"{at_once} answers of {part.max_tokens} tokens at once overflow the shared cache of {card.context}"
            )
            yield Fault(f"plan.concurrency.levels[{at}]", level, reason, "lower the level or max_tokens, or raise -c")


def _thresholds(card: SetupCard) -> Iterator[Fault]:
    parts: dict[str, PartName] = {spec.id: spec.part for spec in cells(card)}  # type: ignore[misc]
    for cell, figures in card.thresholds.items():
        if cell not in parts:
            yield Fault(f"thresholds.{cell}", None, "no such cell in this plan", nearest(cell, list(parts)))
            continue
        known = FIGURES[parts[cell]]
        for figure, limit in figures.items():
            field = f"thresholds.{cell}.{figure}"
            if figure not in known:
                yield Fault(field, None, f"{parts[cell]} has no such figure", nearest(figure, list(known)))
            else:
                yield from _limit(field, limit, lower_is_better=known[figure] == "lower")


def _limit(field: str, limit: Limit, *, lower_is_better: bool) -> Iterator[Fault]:
    floor, target = limit.floor, limit.target
    if floor is None and target is None:
        yield Fault(field, None, "has neither floor nor target", "write one, or remove the figure")
    elif floor is not None and target is not None and (target > floor if lower_is_better else target < floor):
        side, word = ("above", "most") if lower_is_better else ("below", "least")
        yield Fault(
            f"{field}.target",
            target,
            f"the target is {side} the floor ({floor:g})",
            f"the floor is the {word} that is acceptable",
        )
