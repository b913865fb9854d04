"""Facts about this machine; NVML raises as it is documented to."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from fake_nvml import Device, FakeNvml

from pytest_llmbench import __version__, machine
from pytest_llmbench.machine import Gpu

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, NO_LIBRARY, LOST, UNKNOWN = 3, 4, 9, 12, 15, 999


class Nvml(FakeNvml):
    def nvmlDeviceGetPowerManagementLimit(self, device: Device) -> int:  # noqa: N802 - NVML's own name
        self._call("nvmlDeviceGetPowerManagementLimit", device)
        return device.limit_mw


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[[Nvml], None]:
    def use(fake: Nvml) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", fake)

    return use


def test_every_gpu_with_what_it_says(nvml: Callable[[Nvml], None]) -> None:
    fake = Nvml(Device("GPU-a"), Device("GPU-b", name="NVIDIA RTX PRO 6000", total=96 * 2**30, limit_mw=600_000))
    nvml(fake)
    here = machine.detect()
    assert here.gpus == (
        Gpu("nvidia", "NVIDIA GeForce RTX 5060 Ti", "GPU-a", 17_000_000_000 // 2**20, 180.0),
        Gpu("nvidia", "NVIDIA RTX PRO 6000", "GPU-b", 96 * 1024, 600.0),
    )
    assert (here.gpu_note, here.driver) == (None, "580.65.06")
    assert fake.asked["nvmlShutdown"] == 1


@pytest.mark.parametrize("code", [NO_LIBRARY, DRIVER_NOT_LOADED, NO_PERMISSION, UNKNOWN])
def test_without_nvml_there_is_no_gpu_and_the_reason_is_said(nvml: Callable[[Nvml], None], code: int) -> None:
    nvml(Nvml(errors={"nvmlInit": code}))
    here = machine.detect()
    assert here.gpus == ()
    assert here.driver is None
    assert here.gpu_note is not None
    assert re.search(r"no NVIDIA GPU that NVML can reach: \w", here.gpu_note)


def test_nvml_without_a_gpu(nvml: Callable[[Nvml], None]) -> None:
    nvml(Nvml())
    assert (machine.detect().gpus, machine.detect().gpu_note) == ((), "NVML lists no GPU")


def test_what_a_device_does_not_tell_is_unknown_never_zero(nvml: Callable[[Nvml], None]) -> None:
    # Unified memory (GB10) has no NVML memory figure.
    silent = dict.fromkeys(
        ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetUUID", "nvmlDeviceGetName"),
        NOT_SUPPORTED,
    )
    nvml(Nvml(Device("GPU-a", errors=silent), errors={"nvmlSystemGetDriverVersion": UNKNOWN}))
    here = machine.detect()
    assert here.gpus == (Gpu("nvidia", "unnamed NVIDIA GPU", None, None, None),)
    assert here.driver is None


@pytest.mark.parametrize("question", ["nvmlDeviceGetHandleByIndex"])
def test_a_gpu_that_fell_off_the_bus_is_said(nvml: Callable[[Nvml], None], question: str) -> None:
    fake = Nvml(Device("GPU-a", errors={question: LOST}))
    nvml(fake)
    here = machine.detect()
    assert here.gpus == ()
    assert here.gpu_note == "NVML failed: GPU is lost"
    assert fake.asked["nvmlShutdown"] == 1


def test_a_shutdown_that_fails_changes_nothing(nvml: Callable[[Nvml], None]) -> None:
    nvml(Nvml(Device("GPU-a"), errors={"nvmlShutdown": UNKNOWN}))
    assert [gpu.uuid for gpu in machine.detect().gpus] == ["GPU-a"]


def test_bytes_are_text(nvml: Callable[[Nvml], None]) -> None:
    nvml(Nvml(Device(b"GPU-old", name=b"Tesla")))  # type: ignore[arg-type] # as old bindings answer
    assert [(gpu.uuid, gpu.name) for gpu in machine.detect().gpus] == [("GPU-old", "Tesla")]


def test_this_machine() -> None:
    here = machine.detect()
    document = here.to_json()
    json.dumps(document, allow_nan=False)
    assert here.memory_mib > 0
    assert here.cores_logical is None or here.cores_logical >= 1
    assert re.fullmatch(r"[0-9a-f]{16}", here.host_id)
    assert machine.detect().host_id == here.host_id


def test_the_machine_has_a_pseudonym_not_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_first_line", lambda _path: None)
    monkeypatch.setattr("platform.node", lambda: "boss-laptop")
    assert "boss" not in json.dumps(machine.detect().to_json())
    one = machine.detect().host_id
    monkeypatch.setattr("platform.node", lambda: "other-laptop")
    assert machine.detect().host_id != one


def test_software_names_what_a_figure_may_depend_on() -> None:
    found = machine.software()
    assert found["pytest_llmbench"] == __version__
    assert set(found) >= {"python", "implementation", "httpx"}
