"""The ``hardware`` section: the machine as promised."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from pytest_llmbench.card.base import Fault, FrozenMap, Positive, PositiveNumber, Scalar, Stated, Text, refuse


class Gpu(Stated):
    """A GPU that the setup uses, or several alike."""

    vendor: Text | None = None
    """NVIDIA, AMD, Intel, Apple, …"""
    name: Text
    """As the driver names it: "NVIDIA GeForce RTX 5060 Ti"."""
    uuid: Text | None = None
    """As the driver gives it ("GPU-…"); index order is not the driver's order, so indices are not taken."""
    count: Positive = 1
    memory_mib: Positive | None = None
    """As the driver reports it. Not stated for unified memory without a figure of its own."""
    nominal_memory_gb: PositiveNumber | None = None
    """As it is sold ("16 GB"); not the driver's figure."""
    power_limit_w: PositiveNumber | None = None
    unified_memory: bool | None = None
    """The GPU shares the system's memory (Apple silicon, GB10, Strix Halo)."""
    role: Text | None = None
    """What it does in this setup, where several differ: "layers 0-40", "draft model"."""

    @model_validator(mode="after")
    def _uuid_is_one(self) -> Self:
        if self.uuid is not None and self.count > 1:
            remedy = "give each GPU an entry of its own"
            refuse([Fault("count", self.count, "a UUID names one GPU", remedy)])
        return self


class Driver(Stated):
    """The GPU driver."""

    name: Text | None = None
    version: Text | None = None
    variant: Text | None = None
    """open kernel modules, DCH, RADV, AMDVLK, …"""


class Backend(Stated):
    """What the engine computes with, as it was built."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    """cuda, rocm, vulkan, metal, sycl, cpu, …"""
    version: Text | None = None
    variant: Text | None = None


class MachineState(Stated):
    """Settings of the machine that change its speed."""

    governor: Text | None = None
    """CPU frequency governor."""
    power_mode: Text | None = None
    """Of the GPU or the board: MAXN, nvpmodel 0, "high performance"."""
    system_profile: Text | None = None
    """tuned, BIOS or vendor profile."""
    facts: FrozenMap[str, Scalar] = Field(default_factory=dict)
    """Anything else stated about the state, by name, units in the name."""


class Hardware(Stated):
    """The machine. ``gpus`` absent: not stated; ``[]``: promised to use none."""

    gpus: tuple[Gpu, ...] | None = None
    nodes: Positive | None = None
    topology: Text | None = None
    rig: Text | None = None
    """The machine's name, as its owner publishes it."""
    cpu: Text | None = None
    ram_gb: PositiveNumber | None = None
    """As stated or sold; the system's own figure is somewhat lower."""
    os: Text | None = None
    kernel: Text | None = None
    driver: Driver | None = None
    backend: Backend | None = None
    state: MachineState | None = None
    facts: FrozenMap[str, Scalar] = Field(default_factory=dict)
    """Anything else stated about the machine, by name, units in the name."""

    @model_validator(mode="after")
    def _uuids_differ(self) -> Self:
        uuids = [gpu.uuid for gpu in self.gpus or () if gpu.uuid is not None]
        twice = {uuid for uuid in uuids if uuids.count(uuid) > 1}
        refuse([Fault("gpus", uuid, "two GPUs with one UUID", "name each GPU once") for uuid in sorted(twice)])
        return self
