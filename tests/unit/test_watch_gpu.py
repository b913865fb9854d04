"""GPUs under watch, against a stand-in for NVML: what is unknown is None with the reason, and nothing raises."""

from __future__ import annotations

from typing import Any

import pytest
from fake_nvml import Device, FakeNvml

from pytest_llmbench.watch import gpu_summary
from pytest_llmbench.watch.gpu import Gpus, choose
from pytest_llmbench.watch.settings import Ignored, Settings

A, B, C = "GPU-11111111-aaaa", "GPU-22222222-bbbb", "GPU-22333333-cccc"
MACHINE = (A, B, C)
BY_PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("env", "uuids", "note"),
    [
        ({}, MACHINE, "not set"),
        ({"CUDA_VISIBLE_DEVICES": "<GPU1-UUID>"}, MACHINE, "placeholder"),
        ({"CUDA_VISIBLE_DEVICES": B}, (B,), B),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111"}, (A,), "GPU-1111"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-22"}, (), "leaves no GPU visible"),
        ({"CUDA_VISIBLE_DEVICES": f"{C}, {A}"}, (C, A), C),
        ({"CUDA_VISIBLE_DEVICES": "1", **BY_PCI}, (B,), "=1"),
        ({"CUDA_VISIBLE_DEVICES": "2,0", **BY_PCI}, (C, A), "=2,0"),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1", **BY_PCI}, (A,), "=0,7,1"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, MACHINE, "CUDA's own order"),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), "leaves no GPU visible"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, (), "leaves no GPU visible"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-44444444-dddd"}, ("MIG-44444444-dddd",), "MIG-4"),
    ],
)
def test_which_gpus_a_server_may_use(env: dict[str, str], uuids: tuple[str, ...], note: str) -> None:
    choice = choose(env, MACHINE)
    assert choice.uuids == uuids
    assert note in choice.note


def test_one_gpu_needs_no_order() -> None:
    assert choose({"CUDA_VISIBLE_DEVICES": "0"}, (A,)).uuids == (A,)


def gpus(nvml: FakeNvml, env: dict[str, str] | None = None, ours: set[int] | None = None) -> Gpus:
    return Gpus(nvml, env or {}, lambda: ours or set())


def test_a_sample_of_the_card_that_the_server_uses() -> None:
    nvml = FakeNvml(Device(A, used=1), Device(B, used=2))
    watched = gpus(nvml, {"CUDA_VISIBLE_DEVICES": B})
    (sample,) = watched.sample()
    assert sample["uuid"] == B
    assert sample["memory_used_bytes"] == 2
    assert (sample["power_w"], sample["power_limit_w"], sample["energy_j"]) == (150.0, 180.0, 1000.0)
    assert (sample["temperature_c"], sample["sm_mhz"], sample["memory_mhz"]) == (61, 2500, 14000)
    assert (sample["utilization"], sample["memory_utilization"], sample["throttle"]) == (0.9, 0.4, 0)
    assert sample["missing"] == {}


@pytest.mark.parametrize(("code", "word"), [(12, "library not found"), (9, "driver not loaded"), (4, "permissions")])
def test_no_nvml_is_a_reason(code: int, word: str) -> None:
    watched = gpus(FakeNvml(errors={"nvmlInit": code}))
    assert watched.devices == []
    assert word in watched.note.lower()
    assert watched.facts()["devices"] == []
    watched.close()


def test_no_package_is_a_reason() -> None:
    watched = Gpus(None, {}, set)
    assert watched.sample() == []
    assert "not installed" in watched.note


def test_a_machine_with_a_driver_and_no_gpu() -> None:
    assert gpus(FakeNvml()).note == "NVML lists no GPU"


def test_unified_memory_is_unknown_and_not_asked_again() -> None:
    nvml = FakeNvml(Device(A, errors={"nvmlDeviceGetMemoryInfo_v2": 3}))
    watched = gpus(nvml)
    for _ in range(3):
        (sample,) = watched.sample()
        assert sample["memory_used_bytes"] is None
        assert "unified memory" in sample["missing"]["memory_used_bytes"]
        assert sample["power_w"] == 150.0
    assert nvml.asked["nvmlDeviceGetMemoryInfo_v2"] == 1


def test_old_drivers_have_the_first_memory_call_and_the_old_throttle_name() -> None:
    device = Device(
        A, reasons=0x20, errors={"nvmlDeviceGetMemoryInfo_v2": 13, "nvmlDeviceGetCurrentClocksEventReasons": 13}
    )
    (sample,) = gpus(FakeNvml(device)).sample()
    assert sample["memory_used_bytes"] == device.used
    assert sample["throttle"] == 0x20


def test_a_gpu_lost_in_the_middle_is_asked_again() -> None:
    device = Device(A)
    watched = gpus(FakeNvml(device))
    watched.sample()
    everything = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")] + ["nvmlDeviceGetMemoryInfo_v2"]
    device.errors = dict.fromkeys(everything, 15)
    (lost,) = watched.sample()
    assert {lost[key] for key in ("memory_used_bytes", "power_w", "temperature_c", "throttle", "utilization")} == {None}
    assert lost["missing"]["power_w"] == "GPU is lost"
    device.errors = {}
    (back,) = watched.sample()
    assert back["power_w"] == 150.0


def test_one_lost_gpu_does_not_move_the_others() -> None:
    nvml = FakeNvml(Device(A, errors={"nvmlDeviceGetHandleByIndex": 15}), Device(B))
    watched = gpus(nvml, {"CUDA_VISIBLE_DEVICES": "1", **BY_PCI})
    assert [device.uuid for device in watched.devices] == [B]
    assert "GPU 0: GPU is lost" in watched.note


def test_a_card_in_use_before_the_start_is_reported_without_paths() -> None:
    device = Device(A, compute=[(100, 2_000), (7, 5)], graphics=[(200, None)])
    (facts,) = gpus(FakeNvml(device), ours={7}).facts()["devices"]
    assert facts["foreign_processes"] == [
        {"pid": 100, "name": "program100", "memory_bytes": 2000, "sm_share": None},
        {"pid": 200, "name": "program200", "memory_bytes": None, "sm_share": None},
    ]


def test_processes_unknown_is_not_nobody() -> None:
    errors = {"nvmlDeviceGetComputeRunningProcesses": 3, "nvmlDeviceGetGraphicsRunningProcesses": 4}
    (sample,) = gpus(FakeNvml(Device(A, errors=errors))).sample()
    assert sample["foreign_processes"] is None
    assert "foreign_processes" in sample["missing"]


def test_a_part_of_a_gpu_has_its_own_memory_and_no_power() -> None:
    part = Device(
        "MIG-44444444-dddd", used=3, errors={"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetUtilizationRates": 3}
    )
    nvml = FakeNvml(Device(A, mig=1), part)
    watched = gpus(nvml, {"CUDA_VISIBLE_DEVICES": "MIG-44444444-dddd"})
    (sample,) = watched.sample()
    assert sample["memory_used_bytes"] == 3
    assert (sample["power_w"], sample["utilization"]) == (None, None)
    assert sample["missing"] == {"power_w": "Not Supported", "utilization": "Not Supported"}
    assert gpus(nvml, {"CUDA_VISIBLE_DEVICES": A}).facts()["devices"][0]["mig"] is True


def test_a_gpu_that_is_not_there_is_said() -> None:
    watched = gpus(FakeNvml(Device(A)), {"CUDA_VISIBLE_DEVICES": "MIG-99999999-ffff"})
    assert watched.devices == []
    assert watched.note.endswith("MIG-99999999-ffff: Not Found")


# ---- summaries -------------------------------------------------------------------------------------------------------


def run(device: Device, changes: list[dict[str, Any]], **nvml: Any) -> tuple[list[dict[str, Any]], Any, Gpus]:
    """Samples half a second apart, the device changed before each; and the GPUs at the begin."""
    watched = gpus(FakeNvml(device), **nvml)
    begin = watched.sample()
    samples = []
    for at, change in enumerate(changes, 1):
        for key, value in change.items():
            setattr(device, key, value)
        samples.append({"t_ns": at * 500_000_000, "dt_s": 0.5, "gpus": watched.sample()})
    return samples, begin, watched


def test_energy_by_the_drivers_counter() -> None:
    samples, begin, _ = run(Device(A), [{"energy_mj": 1_050_000}, {"energy_mj": 1_130_000}])
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert (gpu["energy_j"], gpu["energy_label"]) == (130.0, "the driver's energy counter")
    assert gpu_summary.energy_per_token_j(gpu["energy_j"], 65) == 2.0
    assert gpu_summary.energy_per_token_j(None, 65) is None
    assert gpu_summary.energy_per_token_j(1.0, 0) is None


def test_energy_by_the_integral_where_there_is_no_counter() -> None:
    device = Device(A, power_mw=100_000, errors={"nvmlDeviceGetTotalEnergyConsumption": 3})
    samples, begin, _ = run(device, [{"power_mw": 200_000}, {"power_mw": 200_000}])
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert gpu["energy_j"] == pytest.approx(0.5 * 150 + 0.5 * 200)
    assert gpu["energy_label"] == "integral of the power samples"
    assert (gpu["power_mean_w"], gpu["power_max_w"]) == (200.0, 200.0)


def test_no_energy_where_power_is_unknown_even_once() -> None:
    device = Device(A, errors={"nvmlDeviceGetTotalEnergyConsumption": 3})
    samples, begin, _ = run(device, [{}, {"errors": {"nvmlDeviceGetPowerUsage": 999}}, {"errors": {}}])
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert gpu["energy_j"] is None
    assert gpu["missing"]["power_w"] == "Unknown Error"


def test_peaks_and_unknowns() -> None:
    device = Device(A, errors={"nvmlDeviceGetMemoryInfo_v2": 3})
    samples, begin, _ = run(device, [{"temperature": 70}, {"temperature": 65, "clocks": {1: 900, 2: 5000}}])
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert (gpu["temperature_max_c"], gpu["sm_min_mhz"], gpu["sm_max_mhz"]) == (70, 900, 2500)
    assert gpu["memory_peak_bytes"] is None
    assert gpu_summary.summarise([{"t_ns": 1, "dt_s": 1}], None) == []


@pytest.mark.parametrize(
    ("reasons", "settings", "word"),
    [
        ([0, 0x40, 0x40, 0], Settings(), "throttled in 50% of the samples (thermal slowdown by the hardware)"),
        ([0x20, 0, 0, 0], Settings(), None),
        ([0x08] * 4, Settings(), "hardware slowdown"),
        ([0x80] * 4, Settings(), "power brake"),
        ([0x04] * 4, Settings(), None),
        ([0x04] * 4, Settings(power_cap_share=0.5), "held at its power limit in 100%"),
        ([0x01, 0x02, 0x10, 0x100], Settings(), None),
    ],
)
def test_throttling_beyond_the_bound_disturbs(reasons: list[int], settings: Settings, word: str | None) -> None:
    samples, begin, _ = run(Device(A), [{"reasons": mask} for mask in reasons])
    summaries = gpu_summary.summarise(samples, begin)
    found = gpu_summary.disturbance(samples, summaries, settings)
    assert (word in found) if word and found else found is word
    assert summaries[0]["throttled_share"] is not None


def test_a_card_that_runs_at_its_power_limit_by_design_is_shown_and_not_disturbed() -> None:
    at_its_limit = {"reasons": 0x04, "power_mw": 179_000}
    samples, begin, _ = run(Device(A), [at_its_limit] * 4)
    summaries = gpu_summary.summarise(samples, begin)
    (gpu,) = summaries
    assert (gpu["power_capped_share"], gpu["throttled_share"]) == (1.0, 0.0)
    assert (gpu["power_limit_w"], gpu["power_limit_min_w"]) == (180.0, 180.0)
    assert gpu_summary.disturbance(samples, summaries, Settings()) is None


@pytest.mark.parametrize("thermal", [0x20, 0x40, 0x08])
def test_heat_disturbs_a_card_at_its_power_limit_all_the_same(thermal: int) -> None:
    samples, begin, _ = run(Device(A), [{"reasons": 0x04 | thermal}] * 4)
    found = gpu_summary.disturbance(samples, gpu_summary.summarise(samples, begin), Settings())
    assert found
    assert "throttled in 100% of the samples" in found
    assert "power limit" not in found


def test_a_power_limit_that_moves_in_a_run_disturbs_it() -> None:
    samples, begin, _ = run(Device(A), [{}, {"limit_mw": 150_000}, {}])
    found = gpu_summary.disturbance(samples, gpu_summary.summarise(samples, begin), Settings())
    assert found == f"the power limit of GPU {gpu_summary.short(A)} moved between 150 and 180 W"


def test_an_unknown_power_limit_disturbs_nothing() -> None:
    samples, begin, _ = run(Device(A, errors={"nvmlDeviceGetEnforcedPowerLimit": 3}), [{}] * 4)
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert (gpu["power_limit_w"], gpu["power_limit_min_w"]) == (None, None)
    assert gpu_summary.disturbance(samples, [gpu], Settings()) is None


def test_unknown_throttling_disturbs_nothing_and_is_none() -> None:
    errors = {"nvmlDeviceGetCurrentClocksEventReasons": 3}
    samples, begin, _ = run(Device(A, errors=errors), [{}] * 4)
    (gpu,) = gpu_summary.summarise(samples, begin)
    assert gpu["throttled_share"] is None
    assert gpu_summary.disturbance(samples, [gpu], Settings()) is None


def test_a_foreign_process_that_computes_on_the_gpu_disturbs() -> None:
    device = Device(A, compute=[(100, 2_000)], sm_percent={100: 80})
    samples, begin, _ = run(device, [{}] * 9)
    summaries = gpu_summary.summarise(samples, begin)
    found = gpu_summary.disturbance(samples, summaries, Settings())
    assert found == "program100 (pid 100) used 80% of GPU GPU-11111111"
    ignoring = Settings(ignore=(Ignored("program100", "the desktop"),))
    assert gpu_summary.disturbance(samples, summaries, ignoring) is None
    assert gpu_summary.disturbance(*_idle(), Settings()) is None


def _idle() -> tuple[Any, Any]:
    samples, begin, _ = run(Device(A, compute=[(100, 2_000)], sm_percent={100: 3}), [{}] * 9)
    return samples, gpu_summary.summarise(samples, begin)
