"""What llama-server's own log says: memory by device, context and slots as they came out, drafts. Pure.

Builds word their logs differently and print more or less by log level (``-lv 4`` for most of it). So each fact is looked for
in every wording known; one that is not there is None, which means "not in the log", never zero. Sizes are MiB as printed.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_llmbench.engine import log_requests

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_llmbench.engine.log_requests import DraftStatistics, LoggedRequest

BufferKind = Literal["weights", "kv", "recurrent", "compute", "output"]
Owner = Literal["model", "draft"]

# The header of a start (engine/process.py); a file may hold several starts.
_START = re.compile(r"^(?:# llmbench: )?start \d+, command: .*$", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\d+\.\d{2}\.\d{3}\.\d{3} )?(?:[DIWE] )?")

_VERSION = (
    re.compile(r"^version: (?P<version>.+)$"),
    re.compile(r"\bbuild(?:_info)?: (?P<version>b?\d+[^ ]*(?: \([0-9a-z]+\))?)"),
    re.compile(r"print_info: build (?P<version>\d+ \([0-9a-z]+\))"),
)
# "CUDA0 model buffer size = 1 MiB"; until 2024 the weights' line had no "model" in it.
_BUFFER = re.compile(
    r"(?P<device>[\w.:\[\]-]+) +(?:(?P<kind>model|KV|RS|compute|output) +)?buffer size += +(?P<mib>[\d.]+) MiB"
)
_KINDS: dict[str | None, BufferKind] = {
    None: "weights",
    "model": "weights",
    "KV": "kv",
    "RS": "recurrent",
    "compute": "compute",
    "output": "output",
}
_REPEATED: tuple[BufferKind, ...] = ("compute", "output")
"""Reserved anew when something is settled: the last line holds. The others add up (a cache for windowed layers beside one)."""
_DRAFT_MODEL = re.compile(r"loading draft model|load_model: loading draft|speculative_init.*loading draft")
_OFFLOADED = re.compile(r"offloaded (?P<layers>\d+)/(?P<total>\d+) layers to GPU")
_NO_GPU = re.compile(r"no usable GPU found")
_N_CTX = re.compile(r": +n_ctx +(?:=|:) *(?P<n>\d+)$")
_N_CTX_SLOT = (
    re.compile(r"\bn_ctx_slot = (?P<n>\d+)"),
    re.compile(r"\bnew slot,? n_ctx(?:_slot)? = (?P<n>\d+)"),
    re.compile(r"\bn_ctx_(?:per_)?seq +(?:=|:) *(?P<n>\d+)"),
)
_N_CTX_TRAIN = re.compile(r"\bn_ctx_train += +(?P<n>\d+)")
_N_SLOTS = re.compile(r"\bn_slots = (?P<n>\d+)")
_UNIFIED = re.compile(r"\bkv_unified +=? *=? *'?(?P<word>true|false|1|0)'?")
_CACHE_TYPES = re.compile(r"K \((?P<k>\w+)\): +[\d.]+ MiB, V \((?P<v>\w+)\)")
_FLASH = re.compile(r"flash_attn += +(?P<word>\w+)")
_FLASH_SETTLED = re.compile(r"Flash Attention (?:was auto, set to )?(?P<word>enabled|disabled)")
_BREAKDOWN = re.compile(
    r"\| +- (?P<device>[^|]+?) +\| +(?:(?P<total>\d+) = (?P<free>\d+) \+ )?\(? *(?P<self>\d+) = +(?P<model>\d+) \+ +"
    r"(?P<context>\d+) \+ +(?P<compute>\d+)\)?(?: \+ +(?P<unaccounted>\d+))? +\|"
)
_IMPOSSIBLE_MIB = 1 << 32
"""A negative rest printed as an unsigned number."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that the engine says it took. device: as it names it (CUDA0, CPU_Mapped, Vulkan0, CUDA_Host, …)."""

    owner: Owner
    device: str
    kind: BufferKind
    mib: float


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A line of the memory breakdown printed at the end. total, free and unaccounted are None for host memory."""

    device: str
    total_mib: int | None
    free_mib: int | None
    self_mib: int
    model_mib: int
    context_mib: int
    compute_mib: int
    unaccounted_mib: int | None


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What one start of a server logged. None: not in the log.

    n_ctx: tokens of all slots together; n_ctx_per_slot: what one request may use; layers: (offloaded, all).
    no_usable_gpu: True where the engine says so, else None (a build without GPUs is silent without ``-ngl``).
    """

    version: str | None
    buffers: tuple[Buffer, ...]
    n_ctx: int | None
    n_ctx_per_slot: int | None
    n_ctx_train: int | None
    n_slots: int | None
    kv_unified: bool | None
    cache_types: tuple[str, str] | None
    flash_attention: bool | None
    layers: tuple[int, int] | None
    no_usable_gpu: bool | None
    memory: tuple[DeviceMemory, ...]
    requests: tuple[LoggedRequest, ...]
    drafts: tuple[DraftStatistics, ...]

    def total_mib(self, kind: BufferKind, owner: Owner | None = None) -> dict[str, float] | None:
        """MiB of one kind by device, the draft model's included unless an owner is given; None: not in the log."""
        found: dict[str, float] = {}
        for one in self.buffers:
            if one.kind == kind and owner in {None, one.owner}:
                found[one.device] = round(found.get(one.device, 0.0) + one.mib, 2)
        return found or None

    def missing(self) -> tuple[str, ...]:
        """The facts that are not in the log."""
        return tuple(name for name, value in asdict(self).items() if value is None or value == ())

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"not_in_the_log": list(self.missing())}


def read(path: Path) -> EngineLog:
    """What an engine's log file says."""
    return parse(path.read_text(encoding="utf-8", errors="replace"))


def parse(text: str) -> EngineLog:
    """Read a server's log; of a file with several starts the last one. Unknown lines are passed over."""
    starts = list(_START.finditer(text))
    lines = [_PREFIX.sub("", line) for line in (text[starts[-1].end() :] if starts else text).splitlines()]
    at_draft = next((at for at, line in enumerate(lines) if _DRAFT_MODEL.search(line)), len(lines))
    # The target model's facts; what a draft model's load repeats comes after, and the server's own lines after that.
    target = lines[:at_draft]
    n_ctx = _number(_N_CTX, target)
    return EngineLog(
        version=_first(lines, _VERSION),
        buffers=(*_buffers(target, "model"), *_buffers(lines[at_draft:], "draft")),
        n_ctx=n_ctx,
        n_ctx_per_slot=next(
            (n for p in _N_CTX_SLOT if (n := _number(p, lines if p is not _N_CTX_SLOT[2] else target))), None
        ),
        n_ctx_train=_number(_N_CTX_TRAIN, target),
        n_slots=_number(_N_SLOTS, lines),
        kv_unified=_unified(lines),
        cache_types=_cache_types(target),
        flash_attention=_flash_attention(target),
        layers=_layers(target),
        no_usable_gpu=True if any(_NO_GPU.search(line) for line in lines) else None,
        memory=_memory(lines),
        requests=log_requests.requests(lines),
        drafts=log_requests.drafts(lines),
    )


def _first(lines: list[str], patterns: tuple[re.Pattern[str], ...]) -> str | None:
    for pattern in patterns:
        for line in lines:
            if found := pattern.search(line):
                return found["version"].strip()
    return None


def _number(pattern: re.Pattern[str], lines: list[str]) -> int | None:
    """The last one: what is settled later replaces what was asked for."""
    found = [match for line in lines if (match := pattern.search(line))]
    return int(found[-1]["n"]) if found else None


def _buffers(lines: list[str], owner: Owner) -> list[Buffer]:
    sizes: dict[tuple[str, BufferKind], float] = {}
    for line in lines:
        if found := _BUFFER.search(line):
            key = found["device"], _KINDS[found["kind"]]
            mib = float(found["mib"])
            sizes[key] = mib if key[1] in _REPEATED else sizes.get(key, 0.0) + mib
    return [Buffer(owner, device, kind, round(mib, 2)) for (device, kind), mib in sizes.items()]


def _unified(lines: list[str]) -> bool | None:
    found = [match["word"] for line in lines if (match := _UNIFIED.search(line))]
    return found[-1] in {"true", "1"} if found else None


def _cache_types(lines: list[str]) -> tuple[str, str] | None:
    found = [match for line in lines if (match := _CACHE_TYPES.search(line))]
    return (found[-1]["k"], found[-1]["v"]) if found else None


def _flash_attention(lines: list[str]) -> bool | None:
    """Settled where "auto" was asked for; "auto" alone is no answer."""
    settled = [match["word"] for line in lines if (match := _FLASH_SETTLED.search(line))]
    if settled:
        return settled[-1] == "enabled"
    asked = [match["word"] for line in lines if (match := _FLASH.search(line))]
    words = {"1": True, "enabled": True, "0": False, "disabled": False}
    return words.get(asked[-1]) if asked else None


def _layers(lines: list[str]) -> tuple[int, int] | None:
    found = [match for line in lines if (match := _OFFLOADED.search(line))]
    return (int(found[-1]["layers"]), int(found[-1]["total"])) if found else None


def _memory(lines: list[str]) -> tuple[DeviceMemory, ...]:
    """The last breakdown: an earlier one is an estimate made to fit the model to the memory."""
    heads = [at for at, line in enumerate(lines) if "memory breakdown [MiB]" in line]
    found = []
    for line in lines[heads[-1] + 1 :] if heads else ():
        match = _BREAKDOWN.search(line)
        if match is None:
            break
        found.append(
            DeviceMemory(
                match["device"],
                _int(match["total"]),
                _int(match["free"]),
                int(match["self"]),
                int(match["model"]),
                int(match["context"]),
                int(match["compute"]),
                _int(match["unaccounted"]),
            )
        )
    return tuple(found)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and int(text) < _IMPOSSIBLE_MIB else None
