"""What a cell's requests carry: the card's sampling and thinking, the part's limits, and prompts that are built once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_llmbench import plan, prompts
from pytest_llmbench.client.counting import counting_client

if TYPE_CHECKING:
    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.records import CellSpec, Prompt

# Declared in the contract as the observer's own: a stream, its counts, and no prompt from a cache.
OBSERVER_FIELDS: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "timings_per_token": True,
    "cache_prompt": False,
}


def fields(card: SetupCard, spec: CellSpec) -> dict[str, Any]:
    """Everything that a cell's requests carry beside the prompt."""
    chosen: dict[str, Any] = {
        **OBSERVER_FIELDS,
        **card.sampling.values,
        **card.thinking.request_fields(on=spec.thinking),
    }
    if card.sampling.seed is not None:
        chosen["seed"] = card.sampling.seed
    if spec.max_tokens is not None:
        chosen["max_tokens"] = spec.max_tokens
    if spec.ignore_eos:
        chosen["ignore_eos"] = True
    return chosen


def body(card: SetupCard, spec: CellSpec, prompt: Prompt) -> dict[str, Any]:
    """The body of one chat request."""
    return {**fields(card, spec), "messages": [{"role": "user", "content": prompt.text}]}


class PromptBook:
    """The card's prompts: each built once, the same in every session (METHOD).

    What was learnt of the tokenizer is kept apart for thinking on and off, whose templates may count differently.
    """

    def __init__(self, card: SetupCard) -> None:
        self._card = card
        self._built: dict[tuple[str, int, int, int], Prompt] = {}
        self._learnt = {True: prompts.Learnt(), False: prompts.Learnt()}

    async def __call__(self, spec: CellSpec, run: int, attempt: int, request: int, client: LlmClient) -> Prompt:
        """The prompt of one request. client: of a server that counts its tokens. Raises InputError, ServerError."""
        key = (spec.id, run, attempt, request)
        if key not in self._built:
            thinking = self._card.thinking.request_fields(on=spec.thinking)
            async with counting_client(client) as http:
                counter = prompts.LlamaTokenCounter(http, thinking, self._learnt[spec.thinking])
                # By the cell's own definition: another cell added to the plan leaves this one's prompts as they were.
                self._built[key] = await prompts.build(spec, plan.cell_sha256(spec), run, attempt, request, counter)
        return self._built[key]
