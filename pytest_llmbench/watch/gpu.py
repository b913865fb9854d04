"""GPUs by UUID through NVML. What a device does not tell is None with the reason, never 0, and nothing here raises.

``CUDA_VISIBLE_DEVICES`` names devices in CUDA's order, which is NVML's only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_llmbench.watch.gpu_summary import program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

# NVML_ERROR_… of nvml.h
_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH = 3, 4, 13, 25
_LASTING = {_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH}
"""Errors that the next sample would meet again: the question is not asked again."""
_PLACEHOLDER = re.compile(r"<[^>]*>")

PROCESSES_EVERY = 4
"""Samples between two lists of the processes on a GPU: that call is the dearest."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the machine's GPUs a server may use. uuids: in NVML's order; note: how that is known, or why not."""

    uuids: tuple[str, ...]
    note: str


def choose(env: Mapping[str, str], uuids: Sequence[str]) -> Choice:
    """The GPUs that a server with this environment may use, out of the machine's (in NVML's order, which is PCI's).

    Follows CUDA's rules: a list of indices or of (abbreviated) UUIDs, that ends at the first one that is not there; empty
    or -1 hides every GPU. A MIG UUID is taken as it stands.
    """
    everything = tuple(uuids)
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return Choice(everything, "CUDA_VISIBLE_DEVICES is not set: all GPUs of the machine")
    if _PLACEHOLDER.search(visible):
        return Choice(everything, f"CUDA_VISIBLE_DEVICES={visible} is a placeholder: all GPUs of the machine")
    words = [word.strip() for word in visible.split(",")]
    by_index = all(re.fullmatch(r"-?\d+", word) for word in words)
    if by_index and words[0] != "-1" and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(everything) > 1:
        return Choice(
            everything,
            f"CUDA_VISIBLE_DEVICES={visible} counts in CUDA's own order, and CUDA_DEVICE_ORDER is not PCI_BUS_ID: which "
            "GPU that is cannot be told, so all of the machine",
        )
    chosen: list[str] = []
    for word in words:
        found = _device(word, everything)
        if found is None:
            break  # CUDA: what follows an invalid entry is invisible too
        chosen.append(found)
    if not chosen:
        return Choice((), f"CUDA_VISIBLE_DEVICES={visible!r} leaves no GPU visible")
    return Choice(tuple(chosen), f"CUDA_VISIBLE_DEVICES={visible}")


def _device(word: str, uuids: Sequence[str]) -> str | None:
    if word.startswith("MIG-"):
        return word
    if re.fullmatch(r"\d+", word):
        return uuids[int(word)] if int(word) < len(uuids) else None
    found = [uuid for uuid in uuids if word and uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None


@dataclass
class _Device:
    uuid: str
    handle: Any
    name: str | None
    missing: dict[str, str] = field(default_factory=dict)
    asked_since: int = 0
    seen_until_us: int = 0
    sample: int = 0


class Gpus:
    """The GPUs under watch. nvml: the ``pynvml`` module, or one that behaves as it.

    note: which GPUs and why, or why none. devices: empty where there is nothing to watch.
    """

    def __init__(self, nvml: Any, env: Mapping[str, str], ours: Callable[[], Collection[int]]) -> None:
        self._nvml, self._ours = nvml, ours
        self.devices: list[_Device] = []
        self.driver: str | None = None
        if nvml is None:
            self.note = "nvidia-ml-py is not installed"
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as exc:
            self.note = f"no NVIDIA GPU that NVML can reach: {_words(exc)}"
            return
        self.driver = self._try(nvml.nvmlSystemGetDriverVersion)
        uuids, faults = self._uuids()
        choice = choose(env, uuids)
        self.note = "; ".join([choice.note, *faults])
        for uuid in choice.uuids:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError as exc:
                self.note += f"; {uuid}: {_words(exc)}"
                continue
            device = _Device(uuid, handle, self._try(nvml.nvmlDeviceGetName, handle))
            self.devices.append(device)
        if not uuids:
            self.note = "; ".join(["NVML lists no GPU", *faults])

    def facts(self) -> dict[str, Any]:
        """What is watched: for the record, before anything of ours uses a GPU."""
        return {
            "driver": self.driver,
            "note": self.note,
            "devices": [
                {
                    "uuid": device.uuid,
                    "name": device.name,
                    "mig": self._mig(device),
                    "foreign_processes": self._processes(device, {}),
                }
                for device in self.devices
            ],
        }

    def sample(self) -> list[dict[str, Any]]:
        """One record a GPU.

        Keys: ``uuid``; ``memory_used_bytes``, ``memory_total_bytes``; ``power_w``, ``power_limit_w``; ``energy_j`` (a
        counter since the driver was loaded); ``temperature_c``; ``sm_mhz``, ``memory_mhz``; ``throttle`` (a bit mask,
        nvmlClocksEventReasons); ``utilization``, ``memory_utilization`` (shares of time);
        ``foreign_processes`` (every few samples); ``missing``: key to the reason why it is None.
        """
        return [self._sample(device) for device in self.devices]

    def close(self) -> None:
        if self._nvml is not None and self.devices:
            self._try(self._nvml.nvmlShutdown)

    # ---- asking ----

    def _sample(self, device: _Device) -> dict[str, Any]:
        nvml, handle = self._nvml, device.handle
        missing: dict[str, str] = {}

        def ask(key: str, call: Callable[[], Any]) -> Any:
            return self._ask(device, key, call, missing)

        memory = ask("memory_used_bytes", lambda: self._memory(handle))
        power_mw = ask("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit_mw = ask("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        energy_mj = ask("energy_j", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        rates = ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        record = {
            "uuid": device.uuid,
            "memory_used_bytes": None if memory is None else memory.used,
            "memory_total_bytes": None if memory is None else memory.total,
            "power_w": None if power_mw is None else power_mw / 1000,
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "energy_j": None if energy_mj is None else energy_mj / 1000,
            "temperature_c": ask(
                "temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            "sm_mhz": ask("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": ask("memory_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "throttle": ask("throttle", lambda: _throttle(nvml, handle)),
            "utilization": None if rates is None else rates.gpu / 100,
            "memory_utilization": None if rates is None else rates.memory / 100,
        }
        if device.sample % PROCESSES_EVERY == 0:
            record["foreign_processes"] = self._processes(device, missing)
        device.sample += 1
        record["missing"] = missing
        return record

    def _ask(self, device: _Device, key: str, call: Callable[[], Any], missing: dict[str, str]) -> Any:
        if key in device.missing:
            missing[key] = device.missing[key]
            return None
        try:
            return call()
        except self._nvml.NVMLError as exc:
            missing[key] = _words(exc)
            if key == "memory_used_bytes" and exc.value == _NOT_SUPPORTED:
                missing[key] += " (a device with unified memory: see the machine's memory and the server's RSS)"
            if exc.value in _LASTING:
                device.missing[key] = missing[key]
            return None

    def _memory(self, handle: Any) -> Any:
        """The second version leaves out what the driver keeps for itself, as nvidia-smi does; old drivers lack it."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        except nvml.NVMLError as exc:
            if exc.value not in {_FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH}:
                raise
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _processes(self, device: _Device, missing: dict[str, str]) -> list[dict[str, Any]] | None:
        """Processes on the GPU that are not ours, or None. memory_bytes, sm_share (of its SM time): None = not told."""
        nvml, handle = self._nvml, device.handle
        lists = [
            self._ask(device, "foreign_processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), missing),
            self._ask(
                device, "graphics_processes", lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle), missing
            ),
        ]
        if all(found is None for found in lists):
            return None
        ours = set(self._ours())
        memory = {one.pid: one.usedGpuMemory for found in lists for one in found or () if one.pid not in ours}
        shares = self._sm_shares(device) if memory else {}
        return [
            {
                "pid": pid,
                "name": program(self._try(nvml.nvmlSystemGetProcessName, pid)),
                "memory_bytes": used,
                "sm_share": shares.get(pid),
            }
            for pid, used in sorted(memory.items())
        ]

    def _sm_shares(self, device: _Device) -> dict[int, float]:
        """Largest share of SM time that each process had since the last question; empty where that is not told."""
        found = self._try(self._nvml.nvmlDeviceGetProcessUtilization, device.handle, device.seen_until_us) or ()
        shares: dict[int, float] = {}
        for one in found:
            device.seen_until_us = max(device.seen_until_us, one.timeStamp)
            shares[one.pid] = max(shares.get(one.pid, 0.0), one.smUtil / 100)
        return shares

    def _uuids(self) -> tuple[list[str], list[str]]:
        """The UUIDs of the machine's GPUs in NVML's order, and what went wrong."""
        nvml = self._nvml
        uuids: list[str] = []
        faults: list[str] = []
        for index in range(self._try(nvml.nvmlDeviceGetCount) or 0):
            try:
                uuids.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))))
            except nvml.NVMLError as exc:
                uuids.append(f"unreachable GPU {index}")  # keeps the places of those that follow
                faults.append(f"GPU {index}: {_words(exc)}")
        return uuids, faults

    def _mig(self, device: _Device) -> bool | None:
        mode = self._try(self._nvml.nvmlDeviceGetMigMode, device.handle)
        return None if mode is None else bool(mode[0])

    def _try(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return _text(call(*args))
        except self._nvml.NVMLError:
            return None


def _throttle(nvml: Any, handle: Any) -> int:
    """Called "throttle reasons" by older drivers' bindings."""
    call = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if call is not None:
        try:
            return int(call(handle))
        except nvml.NVMLError as exc:
            if exc.value != _FUNCTION_NOT_FOUND:
                raise
    return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _words(exc: Exception) -> str:
    """The driver's own words for an NVML error."""
    return str(exc) or type(exc).__name__
