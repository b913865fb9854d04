"""What a card promises of its machine, held against the machine. Pure.

A missing GPU is refused: no number of this machine would be the setup's. Everything else that differs is said and kept in
the contract, for people do run published cards on other hosts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_llmbench.errors import PromiseBrokenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.card import Gpu as PromisedGpu
    from pytest_llmbench.card import Hardware
    from pytest_llmbench.machine import Gpu, Machine

_VENDORS = {"nvidia", "geforce", "amd", "intel", "apple"}
# Words that a driver adds and that no two models differ by; "Ti", "SUPER", "Laptop", "NVL", "PCIe" are not among them.
_DECORATION = {"workstation", "server", "edition", "generation", "graphics", "gpu"}
_OTHER_VENDORS = re.compile(r"\b(amd|radeon|instinct|intel|arc|apple|m[1-9])\b")


def require_gpus(hardware: Hardware, machine: Machine) -> list[tuple[PromisedGpu, Gpu]]:
    """Pair every promised NVIDIA GPU with one of this machine. Raises PromiseBrokenError where one is missing.

    Other vendors' GPUs cannot be asked here; ``unverified`` names them.
    """
    left = list(machine.gpus)
    pairs = []
    for promised in hardware.gpus or ():
        if not _is_nvidia(promised):
            continue
        for _ in range(promised.count):
            match = next((gpu for gpu in left if _fits(gpu, promised)), None)
            if match is None:
                raise PromiseBrokenError(
                    "hardware.gpus",
                    f"{promised.count} x {promised.name}" + (f" ({promised.uuid})" if promised.uuid else ""),
                    _found(machine),
                    "run this card on its own machine, or copy it and state your hardware",
                )
            left.remove(match)
            pairs.append((promised, match))
    return pairs


def unverified(hardware: Hardware) -> tuple[str, ...]:
    """The promised GPUs that only NVIDIA's interface could have confirmed and that are not NVIDIA's."""
    return tuple(f"{gpu.count} x {gpu.name}" for gpu in hardware.gpus or () if not _is_nvidia(gpu))


def differences(hardware: Hardware, machine: Machine, pairs: list[tuple[PromisedGpu, Gpu]]) -> tuple[str, ...]:
    """What else differs from the card, a sentence each; what either side does not know is no difference."""
    return tuple(_differences(hardware, machine, pairs))


def _differences(hardware: Hardware, machine: Machine, pairs: list[tuple[PromisedGpu, Gpu]]) -> Iterator[str]:
    for promised, found in pairs:
        if promised.power_limit_w is not None and found.power_limit_w not in (None, promised.power_limit_w):
            yield f"power limit of {found.name}: {promised.power_limit_w:g} W promised, {found.power_limit_w:g} W here"
    if hardware.cpu is not None and machine.cpu is not None and not _words(hardware.cpu) <= _words(machine.cpu):
        yield f"CPU: {hardware.cpu} promised, {machine.cpu} here"
    if hardware.ram_gb is not None:
        here = machine.memory_mib * 2**20 / 1e9
        # The system's own figure is below what was sold, and GB may have meant GiB.
        if not 0.9 * hardware.ram_gb <= here <= 1.1 * hardware.ram_gb * 2**30 / 1e9:
            yield f"RAM: {hardware.ram_gb:g} GB promised, {here:.1f} GB here"
    if hardware.kernel is not None and hardware.kernel != machine.kernel:
        yield f"kernel: {hardware.kernel} promised, {machine.kernel} here"
    driver = hardware.driver.version if hardware.driver else None
    if driver is not None and machine.driver is not None and driver != machine.driver:
        yield f"driver: {driver} promised, {machine.driver} here"
    governor = hardware.state.governor if hardware.state else None
    if governor is not None and machine.governor is not None and governor != machine.governor:
        yield f"CPU governor: {governor} promised, {machine.governor} here"


def _is_nvidia(gpu: PromisedGpu) -> bool:
    if gpu.vendor is not None:
        return gpu.vendor.lower() == "nvidia"
    return not _OTHER_VENDORS.search(gpu.name.lower())


def _fits(gpu: Gpu, promised: PromisedGpu) -> bool:
    if promised.uuid is not None:
        return gpu.uuid == promised.uuid
    asked, found = _words(promised.name), _words(gpu.name)
    return asked <= found and found - asked <= _DECORATION


def _words(name: str) -> set[str]:
    """``NVIDIA GeForce RTX 5060 Ti 16 GB`` → {rtx, 5060, ti}: the memory size is a promise of its own."""
    plain = re.sub(r"\(r\)|\(tm\)|\b\d+ ?gi?b\b|\b\d+-core\b|\bcpu\b|\bprocessor\b", " ", name.lower())
    return {word for word in re.findall(r"[a-z0-9][a-z0-9.+-]*", plain) if word not in _VENDORS}


def _found(machine: Machine) -> str:
    if not machine.gpus:
        return f"none ({machine.gpu_note})" if machine.gpu_note else "none"
    return ", ".join(gpu.name + (f" ({gpu.uuid})" if gpu.uuid else "") for gpu in machine.gpus)
