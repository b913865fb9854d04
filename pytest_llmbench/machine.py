"""What this machine is: facts for the record."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML names it. Sizes in MiB, power in W; None = the driver does not say."""

    vendor: str
    name: str
    uuid: str | None
    memory_mib: int | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about this machine. host_id: a stable pseudonym (hash of the machine id), no name or address.

    gpus: those that NVML lists; gpu_note: why there are none, or what could not be asked (other vendors' GPUs are not
    looked for, and the note says so).
    """

    host_id: str
    os: str
    kernel: str
    architecture: str
    cpu: str | None
    cores_logical: int | None
    cores_physical: int | None
    memory_mib: int
    gpus: tuple[Gpu, ...]
    gpu_note: str | None
    driver: str | None
    governor: str | None
    virtualised: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def detect() -> Machine:
    """Read the facts; what cannot be read is None, never 0."""
    import psutil  # noqa: PLC0415 - only a run that measures pays for it

    gpus, note, driver = _nvidia()
    return Machine(
        host_id=host_id(),
        os=_os_name(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu=cpu_name(),
        cores_logical=psutil.cpu_count(),
        cores_physical=psutil.cpu_count(logical=False),
        memory_mib=psutil.virtual_memory().total // 2**20,
        gpus=gpus,
        gpu_note=note,
        driver=driver,
        governor=_first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        virtualised=_virtualised(),
    )


def software() -> dict[str, str]:
    """Versions that a figure may depend on."""
    import httpx  # noqa: PLC0415

    return {
        "pytest_llmbench": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "httpx": httpx.__version__,
    }


def _nvidia() -> tuple[tuple[Gpu, ...], str | None, str | None]:
    import pynvml  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        return (), f"this machine has no NVIDIA GPU that NVML can reach: {exc}", None
    try:
        driver = _ask(pynvml.nvmlSystemGetDriverVersion)
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
            limit = _ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
            gpus.append(
                Gpu(
                    "nvidia",
                    _ask(pynvml.nvmlDeviceGetName, handle) or "unnamed NVIDIA GPU",
                    _ask(pynvml.nvmlDeviceGetUUID, handle),
                    None if memory is None else memory.total // 2**20,
                    None if limit is None else limit / 1000,
                )
            )
        return tuple(gpus), None if gpus else "NVML lists no GPU", driver
    except pynvml.NVMLError as exc:
        return (), f"NVML failed: {exc}", None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _ask(call: Any, *args: Any) -> Any:
    """An NVML answer, or None where this device does not support the question."""
    import pynvml  # noqa: PLC0415

    try:
        value = call(*args)
    except pynvml.NVMLError:
        return None
    return value.decode() if isinstance(value, bytes) else value


def host_id() -> str:
    raw = _first_line("/etc/machine-id") or _first_line("/var/lib/dbus/machine-id") or platform.node()
    return hashlib.sha256(f"pytest-llmbench:{raw}".encode()).hexdigest()[:16]


def _os_name() -> str:
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}"
    return f"{platform.system()} {platform.release()}"


def cpu_name() -> str | None:
    for line in _lines("/proc/cpuinfo"):
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _virtualised() -> str | None:
    if "hypervisor" in next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "").split():
        return _first_line("/sys/class/dmi/id/product_name") or "hypervisor"
    if Path("/.dockerenv").exists() or os.environ.get("container"):  # noqa: SIM112 - systemd's name
        return "container"
    return None


def _lines(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
        yield from file


def _first_line(path: str) -> str | None:
    return next((line.strip() for line in _lines(path)), None) or None
