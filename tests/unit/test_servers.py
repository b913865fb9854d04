"""One server at a time, whatever became of who asked for it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest

from pytest_llmbench.errors import ServerError
from pytest_llmbench.servers import Servers

pytestmark = pytest.mark.asyncio


class FakeServer:
    def __init__(self, number: int, log: list[str]) -> None:
        self.start_number, self._log, self._status = number, log, None
        self.pid, self.argv, self.observer_changes, self.ready_s = 1, (), (), 0.1
        self.props: dict[str, Any] = {}
        self.models: dict[str, Any] = {}
        self.log_path = type("Log", (), {"name": f"server-{number}.log"})()

    def exit_status(self) -> str | None:
        return self._status

    def require_alive(self, during: str) -> None: ...

    async def stop(self) -> None:
        self._log.append(f"stopped {self.start_number}")


class FakeClient:
    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def warm_up(self) -> None:
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None: ...


class Quiet:
    """Whatever is asked of it, it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def servers(log: list[str], hang: tuple[int, ...] = (), error: Exception | None = None) -> Servers:
    async def factory(number: int, _changes: Any) -> FakeServer:
        log.append(f"starting {number}")
        try:
            if number in hang:
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            log.append(f"ended {number}")
            raise
        return FakeServer(number, log)

    async def prepare(_live: Any) -> None:
        log.append("prepared")

    return Servers(
        factory=cast("Any", factory),
        connect=lambda _server: cast("Any", FakeClient(error)),
        verify=lambda _server, _changes: None,
        prepare=prepare,
        journal=cast("Any", Quiet()),
        watch=cast("Any", Quiet()),
        memory=cast("Any", Quiet()),
        phase=lambda _text: None,
    )


@pytest.mark.parametrize("how", ["live", "drop"])
async def test_a_start_whose_caller_is_gone_is_ended_before_anything_else(how: str) -> None:
    log: list[str] = []
    one = servers(log, hang=(1,))
    abandoned = asyncio.create_task(one.live())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["starting 1"]
    if how == "live":
        assert (await one.live()).server.start_number == 2
        assert log == ["starting 1", "ended 1", "starting 2", "prepared"]
    else:
        await one.drop("end of the session")
        assert log == ["starting 1", "ended 1"]
    assert abandoned.cancelled()


async def test_the_one_who_started_it_gets_it_again() -> None:
    log: list[str] = []
    one = servers(log)
    assert await one.live() is await one.live()
    await one.drop("done")
    assert log == ["starting 1", "prepared", "stopped 1"]


async def test_a_server_that_takes_no_connection_is_a_server_that_failed() -> None:
    log: list[str] = []
    with pytest.raises(ServerError, match="server start 1 takes no connection: All connection attempts failed"):
        await servers(log, error=httpx.ConnectError("All connection attempts failed")).live()
    assert log == ["starting 1", "stopped 1"]
