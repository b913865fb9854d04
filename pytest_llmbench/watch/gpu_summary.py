"""From GPU samples to what a run reports of each GPU, and whether the GPU itself disturbed it. Pure.

Energy is the difference of the driver's energy counter where it has one, else the integral of the power samples
(trapezoids), and the label says which; per token it is that by the tokens generated.
"""

from __future__ import annotations

import itertools
import re
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.watch.settings import Settings

# nvmlClocksEventReasons of nvml.h
THERMAL = {0x20: "thermal slowdown by the driver", 0x40: "thermal slowdown by the hardware"}
HARDWARE = {0x08: "hardware slowdown", 0x80: "power brake by the hardware"}
POWER_CAP = 0x04
LIMIT_MOVED_W = 1.0
"""A driver rounds what it enforces; nobody sets a limit anew for less."""


def energy_per_token_j(energy_j: float | None, tokens: int | None) -> float | None:
    """Joule a generated token; None where either is unknown or no token was generated."""
    return energy_j / tokens if energy_j is not None and tokens else None


def summarise(samples: Sequence[dict[str, Any]], at_begin: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """One record a GPU: peaks, means, energy in J, and shares of samples that were throttled.

    at_begin: the GPUs at the run's begin, where energy starts to count. ``missing``: key to the reason why it is None.
    """
    series: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for sample in samples:
        for gpu in sample.get("gpus") or ():
            series.setdefault(gpu["uuid"], []).append((sample["t_ns"], gpu))
    begin = {gpu["uuid"]: gpu for gpu in at_begin or ()}
    first_ns = samples[0]["t_ns"] - round(samples[0]["dt_s"] * 1e9) if samples else 0
    return [_one(uuid, readings, begin.get(uuid), first_ns) for uuid, readings in series.items()]


def _one(
    uuid: str, readings: list[tuple[int, dict[str, Any]]], begin: dict[str, Any] | None, first_ns: int
) -> dict[str, Any]:
    gpus = [gpu for _, gpu in readings]
    line = readings if begin is None else [(first_ns, begin), *readings]
    energy_j, label = _energy(line)
    masks = [gpu["throttle"] for gpu in gpus if gpu["throttle"] is not None]
    missing: dict[str, str] = {}
    for gpu in gpus:
        missing |= gpu["missing"]
    foreign = {
        entry["pid"]: entry | {"sm_share": _most([entry["sm_share"]])}
        for gpu in gpus
        for entry in gpu.get("foreign_processes") or ()
    }
    return {
        "uuid": uuid,
        "memory_peak_bytes": _most([gpu["memory_used_bytes"] for gpu in gpus]),
        "power_mean_w": _mean([gpu["power_w"] for gpu in gpus]),
        "power_max_w": _most([gpu["power_w"] for gpu in gpus]),
        "power_limit_w": _most([gpu["power_limit_w"] for gpu in gpus]),
        "power_limit_min_w": min(
            (gpu["power_limit_w"] for gpu in gpus if gpu["power_limit_w"] is not None), default=None
        ),
        "energy_j": energy_j,
        "energy_label": label,
        "temperature_max_c": _most([gpu["temperature_c"] for gpu in gpus]),
        "sm_min_mhz": min((gpu["sm_mhz"] for gpu in gpus if gpu["sm_mhz"] is not None), default=None),
        "sm_max_mhz": _most([gpu["sm_mhz"] for gpu in gpus]),
        "memory_max_mhz": _most([gpu["memory_mhz"] for gpu in gpus]),
        "utilization_mean": _mean([gpu["utilization"] for gpu in gpus]),
        "throttled_share": _share(masks, sum(THERMAL | HARDWARE)),
        "power_capped_share": _share(masks, POWER_CAP),
        "throttle_reasons": {
            name: share for bit, name in (THERMAL | HARDWARE).items() if (share := _share(masks, bit))
        },
        "foreign_processes": list(foreign.values()),
        "missing": missing,
    }


def disturbance(
    samples: Sequence[dict[str, Any]], summaries: Sequence[dict[str, Any]], settings: Settings
) -> str | None:
    """Why a run counts as disturbed by its GPUs, or None: slowed down beyond the bound, or shared with a foreign process.

    A GPU at its power limit is no disturbance unless the card says so: many run there by design, in every session alike.
    A limit that moves in the middle of a run is one: its halves belong to two setups.
    """
    reasons = []
    for gpu in summaries:
        throttled, capped = gpu["throttled_share"], gpu["power_capped_share"]
        if throttled is not None and throttled > settings.throttle_share:
            names = ", ".join(gpu["throttle_reasons"])
            reasons.append(f"GPU {short(gpu['uuid'])} throttled in {throttled:.0%} of the samples ({names})")
        if capped is not None and settings.power_cap_share is not None and capped > settings.power_cap_share:
            reasons.append(f"GPU {short(gpu['uuid'])} held at its power limit in {capped:.0%} of the samples")
        lowest, highest = gpu["power_limit_min_w"], gpu["power_limit_w"]
        if lowest is not None and highest - lowest >= LIMIT_MOVED_W:
            reasons.append(
                f"the power limit of GPU {short(gpu['uuid'])} moved between {lowest:.0f} and {highest:.0f} W"
            )
        reasons += _shared(samples, gpu["uuid"], settings)
    return "; ".join(reasons) or None


def _shared(samples: Sequence[dict[str, Any]], uuid: str, settings: Settings) -> list[str]:
    """Foreign processes that used the GPU's SMs above the limit in as many lists in a row as the guard asks."""
    streak: dict[int, int] = {}
    found: dict[int, str] = {}
    lists = [
        gpu["foreign_processes"]
        for sample in samples
        for gpu in sample.get("gpus") or ()
        if gpu["uuid"] == uuid and gpu.get("foreign_processes") is not None
    ]
    for listed in lists:
        busy = {
            entry["pid"]: entry
            for entry in listed
            if (entry["sm_share"] or 0.0) > settings.limit_share and not settings.ignored(entry["name"] or "")
        }
        streak = {pid: streak.get(pid, 0) + 1 for pid in busy}
        for pid, entry in busy.items():
            if streak[pid] >= settings.consecutive:
                found[pid] = (
                    f"{entry['name'] or 'a process'} (pid {pid}) used {entry['sm_share']:.0%} of GPU {short(uuid)}"
                )
    return list(found.values())


def program(name: str | None) -> str | None:
    """``/usr/bin/blender --x`` → ``blender``: paths and arguments do not belong into a record."""
    return re.split(r"[\\/]", (name or "").partition(" ")[0])[-1] or None


def short(uuid: str) -> str:
    """``GPU-1a2b3c4d-…`` → ``GPU-1a2b3c4d``: enough to tell GPUs apart in a message."""
    return "-".join(uuid.split("-")[:2])


def _energy(line: Sequence[tuple[int, dict[str, Any]]]) -> tuple[float | None, str | None]:
    counts = [gpu["energy_j"] for _, gpu in line if gpu["energy_j"] is not None]
    if len(counts) >= 2 and counts[-1] >= counts[0] and line[0][1]["energy_j"] is not None:
        return round(counts[-1] - counts[0], 3), "the driver's energy counter"
    power = [(t_ns, gpu["power_w"]) for t_ns, gpu in line if gpu["power_w"] is not None]
    if len(power) < 2 or len(power) < len(line):  # a gap in the middle would be guessed over
        return None, None
    pairs = itertools.pairwise(power)
    return round(sum((b[0] - a[0]) / 1e9 * (a[1] + b[1]) / 2 for a, b in pairs), 3), "integral of the power samples"


def _share(masks: Sequence[int], bits: int) -> float | None:
    return round(sum(bool(mask & bits) for mask in masks) / len(masks), 3) if masks else None


def _most(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None
