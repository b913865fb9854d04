"""The servers of one setup: one at a time, started when needed, never a benchmark on one that may still be busy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from pytest_llmbench.engine.command import redact
from pytest_llmbench.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.watch import Watch
    from pytest_llmbench.watch.memory import MemoryWatch

Changes = tuple[tuple[str, str], ...]


class StartNumbered(Protocol):
    """Start the setup's server anew; the number counts the starts of this run's folder.

    changes: (flag, value) in place of the card's own arguments.
    """

    async def __call__(self, start_number: int, changes: Changes) -> RunningServer: ...


@dataclass
class Live:
    """A running server with its client, and what was already done on it.

    changes: what it was started with in place of the card's arguments. busy: a request to it was given up. before_stop: to be
    called before the server is stopped.
    """

    server: RunningServer
    client: LlmClient
    changes: Changes = ()
    warmed: set[str] = field(default_factory=set)
    busy: bool = False
    before_stop: Callable[[], None] | None = None

    @property
    def context(self) -> int | None:
        """Tokens that one request may use, as the server says."""
        found = (self.server.props.get("default_generation_settings") or {}).get("n_ctx")
        return found if isinstance(found, int) else None

    @property
    def slots(self) -> int | None:
        found = self.server.props.get("total_slots")
        return found if isinstance(found, int) else None

    async def close(self) -> None:
        if self.before_stop is not None:
            self.before_stop()
        await self.client.aclose()  # first: a server with an open stream takes 30 s to stop
        await self.server.stop()


class Neighbour(Protocol):
    """Another server that shares the machine with this setup's: the control."""

    async def before_start(self) -> None:
        """The setup's own server is about to be started, and none of it runs."""
        ...

    async def make_room(self) -> None:
        """A server is about to be started that must find the memory free."""
        ...


class Servers:
    """Starts and stops a setup's server, which is watched while it runs.

    factory starts a server; connect makes its client. prepare is awaited once, on the first server of the card as it
    stands, before its first request (the contract is written there); verify on every server. phase is told what happens.
    neighbour: told before each start. first_start: the number of the first start; starts: how many there were, counted on
    from it. after_start: called with each ready server's pid; what it returns is called before that server is stopped.
    """

    def __init__(
        self,
        *,
        factory: StartNumbered,
        connect: Callable[[RunningServer], LlmClient],
        verify: Callable[[RunningServer, Changes], None],
        prepare: Callable[[Live], Any],
        journal: Journal,
        watch: Watch,
        memory: MemoryWatch,
        phase: Callable[[str], None],
        first_start: int = 1,
        after_start: Callable[[int], Callable[[], None] | None] | None = None,
        neighbour: Neighbour | None = None,
    ) -> None:
        self.memory, self.starts = memory, first_start - 1
        self._factory, self._connect, self._verify, self._prepare = factory, connect, verify, prepare
        self._journal, self._watch, self._phase = journal, watch, phase
        self._after_start = after_start
        self._neighbour = neighbour
        self._live: Live | None = None
        self._prepared = False
        self._starting: asyncio.Task[Any] | None = None

    async def live(self) -> Live:
        """The running server of the card as it stands, started if there is none. Raises ServerError, PromiseBrokenError."""
        await self._end_abandoned()
        if self._live is not None and self._live.server.exit_status() is not None:
            await self.drop(f"found dead: {self._live.server.exit_status()}")
        if self._live is not None and self._live.busy:
            await self.drop("it may still be busy with a request that was given up")
        if self._live is not None and self._live.changes:
            await self.drop("it was started with other arguments than the card's")
        if self._live is None:
            self._starting = asyncio.current_task()
            if self._neighbour is not None:
                await self._neighbour.before_start()
            self._live = await self._start(())
            self._starting = None
        return self._live

    async def fresh(self, reason: str) -> Live:
        """A server that was started just now."""
        await self.drop(reason)
        return await self.live()

    async def drop(self, reason: str) -> None:
        """Stop the running server, if any."""
        await self._end_abandoned()
        if self._live is None:
            return
        live, self._live = self._live, None
        exit_status = live.server.exit_status()
        await live.close()
        self._watch.set_server(None)
        self._journal.event(
            "server stopped",
            start=live.server.start_number,
            reason=reason,
            exit=exit_status or live.server.exit_status(),
            died=exit_status is not None,
        )

    async def cold(self, why: str, changes: Changes) -> Live:
        """A server started for one run alone, once memory has come to rest. Raises ServerError."""
        await self.drop(why)
        self._starting = asyncio.current_task()
        if self._neighbour is not None:
            await self._neighbour.make_room()
        left = await self.memory.settle()
        if left is not None:
            self._journal.event("memory not idle", reason=why, found=left)
        self._live = await self._start(changes)
        self._starting = None
        return self._live

    async def _end_abandoned(self) -> None:
        """End a start whose caller is gone (a time limit that raised out of the event loop), with its server."""
        task, self._starting = self._starting, None
        if task is None or task.done() or task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait([task])

    async def _connected(self, live: Live) -> None:
        try:
            await live.client.warm_up()
        except httpx.TransportError as exc:
            live.server.require_alive("its first connections")
            said = f"server start {self.starts} takes no connection: {exc or type(exc).__name__}"
            raise ServerError(said) from None

    async def _start(self, changes: Changes) -> Live:
        self.starts += 1
        said = "".join(f" with {flag} {value}" for flag, value in changes)
        self._phase(f"starting the server{said} (start {self.starts})")
        self._journal.event("server starting", start=self.starts, changes=changes)
        try:
            server = await self._factory(self.starts, changes)
        except ServerError as exc:
            self._journal.event("server failed", start=self.starts, error=str(exc))
            raise
        live = Live(server, self._connect(server), changes)
        self._watch.set_server(server.pid)
        try:
            self._journal.event(
                "server ready",
                start=self.starts,
                pid=server.pid,
                argv=redact(server.argv),
                observer_changes=server.observer_changes,
                ready_s=server.ready_s,
                log=server.log_path.name,
                props=server.props,
                models=server.models,
            )
            self._verify(server, changes)
            await self._connected(live)
            if not self._prepared and not changes:
                await self._prepare(live)
                self._prepared = True
            if self._after_start is not None:
                live.before_stop = self._after_start(server.pid)
        except BaseException:
            await live.close()
            raise
        return live
