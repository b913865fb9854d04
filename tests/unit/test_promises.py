"""What is refused, what is only said, and what cannot be known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_llmbench import promises
from pytest_llmbench.card import Hardware
from pytest_llmbench.errors import PromiseBrokenError
from pytest_llmbench.machine import Gpu, Machine

HERE = Machine(
    host_id="0", os="Debian", kernel="6.1", architecture="x86_64", cpu="12th Gen Intel(R) Core(TM) i7-12700K",
    cores_logical=20, cores_physical=12, memory_mib=31_900, gpus=(), gpu_note="NVML lists no GPU", driver=None,
    governor=None, virtualised=None,
)  # fmt: skip


def machine(*names: str) -> Machine:
    return replace(HERE, gpus=tuple(Gpu("nvidia", name, f"GPU-{n}", 16_000, 180.0) for n, name in enumerate(names)))


def of(content: dict[str, object]) -> Hardware:
    return Hardware.model_validate_json(json.dumps(content))


def hardware(*names: str, **more: object) -> Hardware:
    return of({"gpus": [{"name": name} for name in names], **more})


@pytest.mark.parametrize(
    ("promised", "found"),
    [
        ("NVIDIA GeForce RTX 5060 Ti 16 GB", "NVIDIA GeForce RTX 5060 Ti"),
        ("RTX 3060", "NVIDIA GeForce RTX 3060"),
        ("RTX PRO 6000 Blackwell Max-Q", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
    ],
)
def test_one_gpu_under_the_names_people_write(promised: str, found: str) -> None:
    assert len(promises.require_gpus(hardware(promised), machine(found))) == 1


@pytest.mark.parametrize(
    ("promised", "found"),
    [("RTX 3060", "NVIDIA GeForce RTX 3060 Ti"), ("RTX 4070", "NVIDIA GeForce RTX 4070 SUPER"), ("RTX 3080", "NVIDIA GeForce RTX 3080 Laptop GPU"), ("H100", "NVIDIA H100 NVL"), ("RTX 3060 Ti", "NVIDIA GeForce RTX 3060")],
)  # fmt: skip
def test_another_model_is_another_gpu(promised: str, found: str) -> None:
    with pytest.raises(PromiseBrokenError, match=found):
        promises.require_gpus(hardware(promised), machine(found))


def test_count_and_uuid() -> None:
    two = of({"gpus": [{"name": "RTX 3090", "count": 2}]})
    assert len(promises.require_gpus(two, machine("RTX 3090", "RTX 3090"))) == 2
    with pytest.raises(PromiseBrokenError, match="2 x RTX 3090"):
        promises.require_gpus(two, machine("RTX 3090"))
    one = of({"gpus": [{"name": "RTX 3090", "uuid": "GPU-1"}]})
    assert promises.require_gpus(one, machine("RTX 3090", "RTX 3090"))[0][1].uuid == "GPU-1"
    with pytest.raises(PromiseBrokenError):
        promises.require_gpus(one, machine("RTX 3090"))


@pytest.mark.parametrize("gpu", [{"name": "Radeon RX 7900 XTX"}, {"name": "RX 7900", "vendor": "AMD"}, {"name": "Apple M3 Max"}, {"name": "Intel Arc B580"}])  # fmt: skip
def test_what_nvml_cannot_see_is_not_refused_but_said(gpu: dict[str, str]) -> None:
    promised = of({"gpus": [gpu]})
    assert promises.require_gpus(promised, HERE) == []
    assert promises.unverified(promised) == (f"1 x {gpu['name']}",)


def test_nothing_stated_and_none_promised() -> None:
    assert promises.require_gpus(Hardware(), machine("RTX 3090")) == []
    assert promises.require_gpus(hardware(), machine("RTX 3090")) == []


def test_the_same_machine_differs_in_nothing() -> None:
    same = hardware(cpu="Intel Core i7-12700K", ram_gb=32, kernel="6.1", driver={"version": "595.1"})
    assert promises.differences(same, HERE, []) == ()


def test_differences_are_sentences() -> None:
    other = hardware("RTX 3090", cpu="AMD Ryzen 9 5950X", ram_gb=64, kernel="6.12", state={"governor": "performance"})
    promised = of({"gpus": [{"name": "RTX 3090", "power_limit_w": 250}]})
    here = replace(machine("RTX 3090"), governor="powersave")
    assert promises.differences(promised, here, promises.require_gpus(promised, here)) == (
        "power limit of RTX 3090: 250 W promised, 180 W here",
    )
    assert [line.partition(":")[0] for line in promises.differences(other, here, [])] == [
        "CPU",
        "RAM",
        "kernel",
        "CPU governor",
    ]
