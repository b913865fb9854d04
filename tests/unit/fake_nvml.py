"""A stand-in for pynvml: the functions, structs and error codes that the watch uses, as NVML documents them.

Fields of a ``Device`` are what the functions return; an int in ``errors`` (by function name) is raised as its NVMLError.
As a module it has one GPU, so that the helper process can be told to use it by name.
"""
# ruff: noqa: N802, N815, N816 - NVML's own names

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

ERROR_TEXTS = {
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    999: "Unknown Error",
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(ERROR_TEXTS[value])


NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
nvmlMemory_v2 = 0x02000028


@dataclass
class Device:
    uuid: str
    name: str = "NVIDIA GeForce RTX 5060 Ti"
    used: int = 5_000_000_000
    total: int = 17_000_000_000
    power_mw: int = 150_000
    limit_mw: int = 180_000
    energy_mj: int = 1_000_000
    temperature: int = 61
    clocks: dict[int, int] = field(default_factory=lambda: {1: 2500, 2: 14000})
    reasons: int = 0
    gpu_percent: int = 90
    memory_percent: int = 40
    mig: int = 0
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    sm_percent: dict[int, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """Behaves as the module ``pynvml``; asked counts the calls by name."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM
    nvmlMemory_v2 = nvmlMemory_v2

    def __init__(self, *devices: Device, errors: dict[str, int] | None = None) -> None:
        self.devices, self.errors = list(devices), errors or {}
        self.asked: dict[str, int] = {}

    def _call(self, name: str, device: Device | None = None) -> None:
        self.asked[name] = self.asked.get(name, 0) + 1
        code = self.errors.get(name) or (device.errors.get(name) if device else None)
        if code:
            raise NVMLError(code)

    def nvmlInit(self) -> None:
        self._call("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        self._call("nvmlSystemGetDriverVersion")
        return "580.65.06"

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        self._call("nvmlSystemGetProcessName")
        return f"/usr/bin/program{pid} --with arguments"

    def nvmlDeviceGetCount(self) -> int:
        self._call("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        self._call("nvmlDeviceGetHandleByIndex", self.devices[index])
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        self._call("nvmlDeviceGetHandleByUUID")
        for device in self.devices:
            if device.uuid == uuid:
                return device
        raise NVMLError(6)

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        self._call("nvmlDeviceGetUUID", device)
        return device.uuid

    def nvmlDeviceGetName(self, device: Device) -> str:
        self._call("nvmlDeviceGetName", device)
        return device.name

    def nvmlDeviceGetMemoryInfo(self, device: Device, version: int | None = None) -> Any:
        self._call("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", device)
        return SimpleNamespace(total=device.total, used=device.used, free=device.total - device.used)

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:
        self._call("nvmlDeviceGetPowerUsage", device)
        return device.power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Device) -> int:
        self._call("nvmlDeviceGetEnforcedPowerLimit", device)
        return device.limit_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Device) -> int:
        self._call("nvmlDeviceGetTotalEnergyConsumption", device)
        return device.energy_mj

    def nvmlDeviceGetTemperature(self, device: Device, sensor: int) -> int:
        self._call("nvmlDeviceGetTemperature", device)
        assert sensor == NVML_TEMPERATURE_GPU
        return device.temperature

    def nvmlDeviceGetClockInfo(self, device: Device, clock: int) -> int:
        self._call("nvmlDeviceGetClockInfo", device)
        return device.clocks[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: Device) -> int:
        self._call("nvmlDeviceGetCurrentClocksEventReasons", device)
        return device.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Device) -> int:
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device)
        return device.reasons

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:
        self._call("nvmlDeviceGetUtilizationRates", device)
        return SimpleNamespace(gpu=device.gpu_percent, memory=device.memory_percent)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        self._call("nvmlDeviceGetMigMode", device)
        return [device.mig, device.mig]

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Any]:
        self._call("nvmlDeviceGetComputeRunningProcesses", device)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: Device) -> list[Any]:
        self._call("nvmlDeviceGetGraphicsRunningProcesses", device)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.graphics]

    def nvmlDeviceGetProcessUtilization(self, device: Device, since_us: int) -> list[Any]:
        self._call("nvmlDeviceGetProcessUtilization", device)
        if not device.sm_percent:
            raise NVMLError(6)  # no sample since then
        return [
            SimpleNamespace(pid=pid, smUtil=share, timeStamp=since_us + 1) for pid, share in device.sm_percent.items()
        ]


def __getattr__(name: str) -> Any:
    return getattr(_MODULE, name)


_MODULE = FakeNvml(Device("GPU-11111111-aaaa"))
