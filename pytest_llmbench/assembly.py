"""One run's servers, attempts and runner, put together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmbench import plan
from pytest_llmbench.attempts import Attempts
from pytest_llmbench.client import LlmClient
from pytest_llmbench.measure import PARTS, request
from pytest_llmbench.preparation import changed
from pytest_llmbench.runner import RetryPolicy, Runner
from pytest_llmbench.servers import Servers
from pytest_llmbench.watch.memory import WatchedMemory

if TYPE_CHECKING:
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.engine.from_card import Setup
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.servers import Changes
    from pytest_llmbench.session import SetupRun


def assemble(run: SetupRun, setup: Setup, journal: Journal, texts: request.PromptBook) -> Runner:
    """The runner of a run whose promises are checked and whose watch is there. No server is started."""
    assert run.watch is not None
    most = max((spec.requests_per_run for spec in run.cells), default=1)
    going_on = run.preparation.going_on
    turns = run.control.turns if run.control is not None else None

    async def start_server(start_number: int, changes: Changes) -> RunningServer:
        spec = replace(setup.spec, changes=changes)
        if (canary := run.wishes.canary) is not None:
            spec = replace(spec, changes=(*changes, *canary.changes()), env=canary.environment(spec.env))
        return await replace(setup, spec=spec).start(start_number, run.folder / f"server-{start_number}.log")

    def connect(server: RunningServer) -> LlmClient:
        silence = run.wishes.silence_timeout_s
        return LlmClient(server.base_url, connections=most + 1, silence_s=silence, headers=server.headers)

    servers = Servers(
        factory=start_server,
        connect=connect,
        verify=run.preparation.verify,
        prepare=run.write_contract,
        journal=journal,
        watch=run.watch,
        memory=WatchedMemory(run.watch, run.folder),
        phase=run.progress.phase,
        first_start=going_on.first_start if going_on else 1,
        after_start=run.planted.on if run.planted is not None else None,
        neighbour=turns,
    )
    attempts = Attempts(
        servers=servers,
        prompts=texts,
        body=lambda spec, prompt: request.body(run.card, spec, prompt),
        journal=journal,
        bounds=run.bounds,
        watch=run.watch,
        progress=run.progress,
        warm_ups={spec.part: spec for spec in (*plan.cells(run.card), *run.cells) if spec.warmups},
        context_asked=lambda spec: changed(run.card, PARTS[spec.part].changes(spec), known=True).slot_context,
        interleave=turns,
    )
    return Runner(card_id=run.card.id, attempts=attempts, retry=RetryPolicy())
