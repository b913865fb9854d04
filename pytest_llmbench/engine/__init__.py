"""From a setup card to a running server.

An engine kind is one file with a ``start`` function that fits ``StartServer``, plus one line in ``KINDS`` (factory.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that one server start needs, already resolved; holds no secret.

    binary: absolute path of the program. args: the card's arguments exactly as written, without the program.
    model_path / draft_path: absolute paths that replace the values of ``-m`` / ``-md`` (added where the card has none).
    changes: (flag, value) that the caller puts in place of the card's own (a context size for ``fit``), declared as such;
    an empty value is a switch.
    env: the card's environment, added to the caller's. wrapper: the card's words in front of the program.
    """

    binary: str
    args: tuple[str, ...]
    model_path: str
    draft_path: str | None = None
    wrapper: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    ready_timeout_s: float = 600.0


class RunningServer(Protocol):
    """A server that answered "ready" and is the process that was started.

    pid: the process that listens, also behind a wrapper. observer_changes: what was changed in the card's command, in
    words. headers: what each request must carry (an API key); a secret, never shown or stored.
    """

    start_number: int
    base_url: str
    pid: int
    argv: tuple[str, ...]
    observer_changes: tuple[str, ...]
    log_path: Path
    ready_s: float
    props: dict[str, Any]
    models: dict[str, Any]
    headers: Mapping[str, str]

    def exit_status(self) -> str | None:
        """``None`` while alive, else the exit in words (``exit code 1``, ``signal SIGKILL``)."""
        ...

    def require_alive(self, during: str) -> None:
        """Raise ServerDiedError (exit, last log lines, ``during``) when the process has ended."""
        ...

    async def stop(self) -> None:
        """TERM, TERM again, KILL the group, reap. Safe to call twice."""
        ...


class StartServer(Protocol):
    """Start a server and wait until it is ready, called in the main thread.

    Raises ServerStartError, and InputError for arguments that cannot be measured; leaves nothing running then.
    """

    async def __call__(self, spec: LaunchSpec, *, start_number: int, log_path: Path) -> RunningServer: ...
