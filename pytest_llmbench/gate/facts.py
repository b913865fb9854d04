"""What was different around a figure: facts of one cell out of a report document. Pure, over the JSON alone.

A fact that the report does not have is not in the mapping; unknown is never 0.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Facts = dict[str, Any]

_GPU: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "sm_mhz": ("sm_max_mhz", statistics.median),
    "memory_mhz": ("memory_max_mhz", statistics.median),
    "power_limit_w": ("power_limit_w", statistics.median),
    "power_mean_w": ("power_mean_w", statistics.median),
    "temperature_c": ("temperature_max_c", max),
    "throttled_share": ("throttled_share", max),
    "power_capped_share": ("power_capped_share", max),
}


def of_cell(document: Mapping[str, Any], cell: str) -> Facts:
    """The facts of one cell: medians (of shares and temperatures the most) over the attempts that its figures come from.

    Keys, where known: sm_mhz, memory_mhz, power_limit_w, power_mean_w, temperature_c, throttled_share, power_capped_share
    (of a GPU; where several work, of the slowest); cpu_pressure, steal_share, foreign_share (of one core), ours_share;
    prompt_tokens, predicted_n, draft_n, draft_n_accepted, queue_ms; layers_offloaded, layers, weights_mib, kv_mib, compute_mib
    (by device), n_ctx, n_slots, flash_attention, cache_types (of the engine's log); engine, engine_sha256, driver, kernel,
    governor. KeyError for a cell that is not in the document.
    """
    for entry in document["cells"]:
        if entry["id"] == cell:
            attempts = [a for a in entry["attempts"] if a.get("error") is None and a.get("guard") != "disturbed"]
            starts = sorted({a["server_start"] for a in attempts})
            environment = document.get("environment") or {}
            return {
                **_gpus(attempts),
                **_machine(attempts),
                **_requests(attempts),
                **_engine(environment.get("engine_log") or {}, starts),
                **_attributes(environment),
            }
    raise KeyError(f"the report has no cell {cell!r}; it has {', '.join(e['id'] for e in document['cells'])}")


def typical(sessions: Sequence[Facts]) -> Facts:
    """The facts of several sessions as one, oldest first: medians of numbers; of everything else what most had, of two the later."""
    found: Facts = {}
    for name in dict.fromkeys(name for one in sessions for name in one):
        known = [one[name] for one in sessions if name in one]
        numbers = [one for one in known if isinstance(one, int | float) and not isinstance(one, bool)]
        found[name] = statistics.median(numbers) if len(numbers) == len(known) else _most(known)
    return found


def _most(known: Sequence[Any]) -> Any:
    return max(reversed(known), key=known.count)


def _watched(attempts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [w for a in attempts if (w := (a.get("details") or {}).get("watch"))]


def _gpus(attempts: Iterable[Mapping[str, Any]]) -> Facts:
    gpus = [gpu for watch in _watched(attempts) for gpu in watch.get("gpus") or ()]
    by_uuid: dict[str, list[Mapping[str, Any]]] = {}
    for gpu in gpus:
        by_uuid.setdefault(gpu["uuid"], []).append(gpu)
    found: Facts = {}
    for name, (key, over_attempts) in _GPU.items():
        levels = [
            over_attempts(known)
            for readings in by_uuid.values()
            if (known := [r[key] for r in readings if r.get(key) is not None])
        ]
        if levels:
            found[name] = min(levels) if name in {"sm_mhz", "memory_mhz", "power_limit_w"} else max(levels)
    return found


def _machine(attempts: Iterable[Mapping[str, Any]]) -> Facts:
    watched = _watched(attempts)
    series = {
        "cpu_pressure": [(w.get("max_pressure") or {}).get("cpu_some") for w in watched],
        "steal_share": [w.get("max_steal_share") for w in watched],
        "foreign_share": [w.get("max_foreign_share") for w in watched],
        "ours_share": [w.get("ours_share") for w in watched],
    }
    return {name: statistics.median(known) for name, v in series.items() if (known := [x for x in v if x is not None])}


def _requests(attempts: Iterable[Mapping[str, Any]]) -> Facts:
    details = [a.get("details") or {} for a in attempts]
    found: Facts = {}
    for name, key in {
        "prompt_tokens": "prompt_tokens",
        "predicted_n": "completion_tokens",
        "draft_n": "draft_n",
        "draft_n_accepted": "draft_n_accepted",
        "queue_ms": "queue_ms",
    }.items():
        known = [d[key] for d in details if isinstance(d.get(key), int | float)]
        if known:
            found[name] = statistics.median(known)
    return found


def _engine(logs: Mapping[str, Any], starts: Iterable[int]) -> Facts:
    """Of the first start that the cell used; a restart in its midst is in the attempts' reasons."""
    log = next((logs[name] for n in starts if (name := f"server-{n}.log") in logs), None)
    if log is None:
        return {}
    found: Facts = {}
    if log.get("layers"):
        found["layers_offloaded"], found["layers"] = log["layers"]
    for kind in ("weights", "kv", "compute"):
        sizes: dict[str, float] = {}
        for buffer in log.get("buffers") or ():
            if buffer["kind"] == kind:
                sizes[buffer["device"]] = round(sizes.get(buffer["device"], 0.0) + buffer["mib"], 2)
        if sizes:
            found[f"{kind}_mib"] = sizes
    for key in ("n_ctx", "n_slots", "flash_attention", "cache_types"):
        if log.get(key) is not None:
            found[key] = log[key]
    return found


def _attributes(environment: Mapping[str, Any]) -> Facts:
    machine, engine = environment.get("machine") or {}, environment.get("engine") or {}
    found = {
        "engine": engine.get("version"),
        "engine_sha256": engine.get("sha256"),
        "driver": machine.get("driver"),
        "kernel": machine.get("kernel"),
        "governor": machine.get("governor"),
    }
    return {name: value for name, value in found.items() if value is not None}
