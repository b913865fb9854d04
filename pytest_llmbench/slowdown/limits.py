"""Hold a power or clock limit on GPUs while standard input is open, then put back what was there.

    python -m pytest_llmbench.slowdown.limits power|clock VALUE UUID…

power: watts; clock: MHz of the SM, as its upper bound. Needs the rights to set limits (root). Prints ``ready``, or why not.
Only SIGKILL leaves a limit behind; then: ``nvidia-smi -pl WATTS``, ``nvidia-smi -rgc``.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Kind = Literal["power", "clock"]


@contextlib.contextmanager
def held(nvml: Any, kind: Kind, value: float, uuids: Sequence[str]) -> Iterator[None]:
    """Set the limit on each GPU, and put the former one back at the end, also where setting a later one fails.

    nvml: the module pynvml. value: watts or MHz. Raises NVMLError, and ValueError for a limit outside of what the GPU takes.
    """
    nvml.nvmlInit()
    undo: list[Callable[[], None]] = []
    try:
        for uuid in uuids:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            undo.append((_power if kind == "power" else _clock)(nvml, handle, value))
        yield
    finally:
        failed: list[Exception] = []
        for restore in reversed(undo):
            try:
                restore()
            except nvml.NVMLError as exc:
                failed.append(exc)  # the others must be put back all the same
        nvml.nvmlShutdown()
        if failed:
            raise failed[0]


def _power(nvml: Any, handle: Any, watts: float) -> Callable[[], None]:
    least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    before = nvml.nvmlDeviceGetPowerManagementLimit(handle)
    asked = round(watts * 1000)
    if not least <= asked < before or asked > most:
        raise ValueError(
            f"{watts:g} W is no lower limit for this GPU: it takes {least / 1000:g} to {before / 1000:g} W now"
        )
    nvml.nvmlDeviceSetPowerManagementLimit(handle, asked)
    return lambda: nvml.nvmlDeviceSetPowerManagementLimit(handle, before)


def _clock(nvml: Any, handle: Any, mhz: float) -> Callable[[], None]:
    # NVML cannot be asked for clocks that somebody locked before; resetting them is all there is.
    nvml.nvmlDeviceSetGpuLockedClocks(handle, 0, round(mhz))
    return lambda: nvml.nvmlDeviceResetGpuLockedClocks(handle)


class _EndedError(Exception):
    pass


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _EndedError


def main(argv: Sequence[str] | None = None, module: str = "pynvml") -> int:
    """0 when the limits were held and put back, 1 otherwise with the reason on standard output."""
    kind, value, *uuids = sys.argv[1:] if argv is None else argv
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        nvml = importlib.import_module(module)
        with held(nvml, "power" if kind == "power" else "clock", float(value), uuids), contextlib.suppress(_EndedError):
            print("ready", flush=True)  # noqa: T201 - the caller waits for it, and may end it at once
            while sys.stdin.buffer.read(4096):
                pass
    except _EndedError:
        return 1
    except Exception as exc:  # noqa: BLE001 - NVMLError exists only where the module does; the caller gets the words
        print(f"{type(exc).__name__}: {exc}", flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
