"""A child process that cannot outlive us: started in its own group, logged to a file, stopped in steps."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pytest_llmbench.engine._reaper import group_alive, start_time
from pytest_llmbench.engine.command import shell_line
from pytest_llmbench.engine.reaper import REAPER
from pytest_llmbench.errors import LlmbenchError, ServerError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import psutil

_SHIM = Path(__file__).with_name("_exec_shim.py")
_POLL_S = 0.02
_GIVE_UP_S = 30.0
_EXPLAINED = {
    signal.SIGKILL: "killed: out of memory?",
    signal.SIGILL: "illegal instruction: built for another CPU?",
    signal.SIGSEGV: "crashed: invalid memory access",
    signal.SIGABRT: "aborted: a check of its own failed",
    signal.SIGBUS: "crashed: a mapped file became shorter, or memory failed",
}


class ExecError(LlmbenchError):
    """The program could not be executed. number: the errno; program: as it was asked for."""

    def __init__(self, program: str, number: int) -> None:
        self.program, self.number = program, number
        reason = {
            errno.ENOENT: "not found (or, for a script, its interpreter)",
            errno.EACCES: "not executable",
            errno.ENOEXEC: "not a program for this machine (exec format)",
        }.get(number, os.strerror(number))
        super().__init__(f"{program}: {reason}")


class ServerProcess:
    """One started process with its group. Made by ``spawn``.

    pid: the process that was started, which is the server itself unless a wrapper stays in front of it; leader of its
    own session and group. started: ``time.monotonic()`` of the start. log_offset: where its own output begins in the log.
    """

    def __init__(
        self, popen: subprocess.Popen[bytes], argv: tuple[str, ...], log_path: Path, log_offset: int, started: float
    ) -> None:
        self._popen = popen
        self._sent: set[int] = set()
        self._ended: float | None = None
        self.pid = popen.pid
        self.argv = argv
        self.log_path = log_path
        self.log_offset = log_offset
        self.started = started

    def returncode(self) -> int | None:
        """None while alive; the exit code, or minus the signal's number."""
        code = self._popen.poll()
        if code is not None and self._ended is None:
            self._ended = time.monotonic()
        return code

    def exit_status(self) -> str | None:
        """None while alive, else the exit in words (``exit code 1``, ``signal SIGKILL (…)``)."""
        code = self.returncode()
        return None if code is None else exit_in_words(code, by_us=-code in self._sent)

    def lifetime_s(self) -> float:
        """Seconds from the start to the end as it was noticed, or to now."""
        self.returncode()
        return (self._ended if self._ended is not None else time.monotonic()) - self.started

    async def stop(self, *, term_again_s: float = 3.0, kill_s: float = 8.0) -> None:
        """End the whole group and reap it: TERM, TERM again, KILL; times in seconds from the call. Safe to call twice.

        The caller closes its clients first: a llama-server with an open stream sits out the first TERM.
        """
        try:
            for pause in self._stop_steps(term_again_s, kill_s):
                await asyncio.sleep(pause)
        except BaseException:
            self.kill()  # cancelled half way: still nothing may survive
            raise

    def stop_now(self, *, term_again_s: float = 0.5, kill_s: float = 1.5) -> None:
        """The same steps without an event loop, shorter: for emergencies."""
        for pause in self._stop_steps(term_again_s, kill_s):
            time.sleep(pause)

    def kill(self) -> None:
        """KILL the group at once and reap it."""
        for pause in self._stop_steps(0.0, 0.0):
            time.sleep(pause)

    def _stop_steps(self, term_again_s: float, kill_s: float) -> Iterator[float]:
        """Yields the pauses, so that one sequence serves with and without an event loop."""
        strays = self._descendants()
        begun = time.monotonic()
        steps = [(0.0, signal.SIGTERM), (term_again_s, signal.SIGTERM), (kill_s, signal.SIGKILL)]
        while self._alive():
            waited = time.monotonic() - begun
            if steps and waited >= steps[0][0]:
                self._signal(steps.pop(0)[1])
                continue
            if waited > kill_s + _GIVE_UP_S:
                raise self._undying([self.pid])
            yield _POLL_S
        for stray in strays:  # those that left the group; psutil knows a reused pid
            if _lives(stray):
                stray.kill()
        while any(_lives(stray) for stray in strays):  # a signal is not yet an end
            if time.monotonic() - begun > kill_s + _GIVE_UP_S:
                raise self._undying([stray.pid for stray in strays if _lives(stray)])
            yield _POLL_S
        REAPER.forget(self.pid)

    def _undying(self, pids: Sequence[int]) -> ServerError:
        return ServerError(
            f"process {', '.join(map(str, pids))} is still there {_GIVE_UP_S:.0f} s after SIGKILL: it hangs in the kernel "
            f"(a GPU driver, a dead disk)\n  command: {shell_line(self.argv)}\n  remedy: see dmesg; a reboot may be needed"
        )

    def _alive(self) -> bool:
        if self.returncode() is None:
            return True
        # Reaped: whoever has this pid now is somebody else, and so is its group.
        return start_time(self.pid) is None and group_alive(self.pid)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode() is None:
            self._sent.add(number)
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # Gone in between. (macOS says "not permitted" of a group of zombies.)
            self.returncode()

    def _descendants(self) -> list[psutil.Process]:
        import psutil  # noqa: PLC0415 - only at a stop

        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            return []


def _lives(process: psutil.Process) -> bool:
    """Whether a process still runs; one that only waits to be reaped (by whom it was left to) does not."""
    import psutil  # noqa: PLC0415 - only at a stop

    try:
        return process.is_running() and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: Path,
    unset: Collection[str] = (),
    header: Sequence[str] = (),
    death_signal: signal.Signals = signal.SIGKILL,
) -> ServerProcess:
    """Start a program whose output goes to a file from the first byte, and which ends when we end, however we end.

    env: added to our own environment, without the names in ``unset``. header: our lines at the start of the log (``# llmbench: …``). log_path is appended
    to. death_signal: what the process gets from the kernel when we die (Linux); its group is in the reaper's hands anyway.
    Raises ExecError (not found, not executable, wrong format); RuntimeError outside of the main thread, because the
    kernel ties the parent-death signal to the thread that spawns.
    """
    if os.name != "posix":
        raise LlmbenchError(
            "starting a server is not supported on this system yet: it needs process groups (Linux, macOS)"
        )
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "spawn a server from the main thread only: its parent-death signal follows the spawning thread"
        )
    command = tuple(argv)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        log.writelines(f"# llmbench: {line}\n".encode() for line in header)
        log.flush()
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        return _spawn(command, {**inherited, **env}, log, log_path, death_signal)


def _spawn(
    argv: tuple[str, ...], env: dict[str, str], log: BinaryIO, log_path: Path, death_signal: signal.Signals
) -> ServerProcess:
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as errors:  # noqa: PTH123 - a descriptor, not a path
        started = time.monotonic()
        try:
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(write_fd)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        process = ServerProcess(popen, argv, log_path, log.tell(), started)
        try:
            # The shim waits for its order, so the group is watched before there is anything to watch.
            REAPER.watch(popen.pid)
            order = {"argv": argv, "env": env, "parent": os.getpid(), "death_signal": int(death_signal)}
            if popen.stdin is not None:
                popen.stdin.write(json.dumps(order).encode())
                popen.stdin.close()
            failure = errors.read()
        except BaseException:
            process.kill()
            raise
    if failure:
        process.kill()
        raise ExecError(argv[0], int(failure))
    return process


def exit_in_words(code: int, *, by_us: bool = False) -> str:
    """``exit code 1``, ``exit code 137 (128 + SIGKILL)``, ``signal SIGKILL (killed: out of memory?)``.

    code: as ``subprocess`` gives it, minus the number for a signal. by_us: we sent the signal, so no guess is made.
    """
    if code >= 0:
        name = _signal_name(code - 128)
        return f"exit code {code} (128 + {name}, of a process behind the wrapper)" if name else f"exit code {code}"
    name = _signal_name(-code) or f"number {-code}"
    if by_us:
        return f"signal {name} (sent by llmbench)"
    try:
        return f"signal {name} ({_EXPLAINED[signal.Signals(-code)]})"
    except (ValueError, KeyError):
        return f"signal {name}"


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def log_header(start_number: int, argv: Sequence[str], env: Sequence[tuple[str, str]]) -> str:
    """The first line of a server log: which start, and the command as run, secrets hidden."""
    return f"start {start_number}, command: {shell_line(argv, env)}"
