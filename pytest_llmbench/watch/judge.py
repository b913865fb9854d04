"""From samples to the guard's word and a run's summary. Pure: the same records from the telemetry file give the same word.

METHOD, "The machine under the test": foreign work above the limit (25 % of one core) in two samples in a row makes a run
disturbed: a process that is not ours, or work without a pid (total CPU minus ours and minus every process seen), steal
time, or pressure that our own work does not explain. Ignored processes and kernel threads that the setup drives count for
none of these, and are reported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_llmbench.watch import gpu_summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.watch import Word
    from pytest_llmbench.watch.settings import Settings

SHORTEST_S = 0.1
"""A window in which CPU shares can be told at all: /proc counts in steps of 10 ms."""
TICK_S = 0.01
NAMED = 3
"""More than so many who worked are counted, not named; all are in the record."""
UNNAMED = "foreign work in samples where not every process was read"

_PARTS = ("cpu_s", "over_s", "in_window_s")

Sample = dict[str, Any]


def judge(
    samples: Sequence[Sample], settings: Settings, *, before: Sample | None = None, gpus_at_begin: Any = None
) -> tuple[Word, str | None, dict[str, Any]]:
    """The word on one run, its reason, and the run's summary.

    samples: those of the run, in order; before: the one that ended where the run began. A run with a single window is
    judged together with the window before it, and says so. gpus_at_begin: the GPUs' sample at the run's begin.
    Shares in the summary are of one core; ``memory_available_min_bytes`` and ``server_rss_peak_bytes`` are None where
    unknown.
    """
    windows = merge(samples, settings.interval_s)
    details = _summary(samples, windows, settings)
    details["gpus"] = gpu_summary.summarise(samples, gpus_at_begin)
    watched_s = sum(window["dt_s"] for window in windows)
    if not windows or watched_s < SHORTEST_S:
        return "not watched", f"too short to watch: {watched_s * 1000:.0f} ms", details
    judged = windows
    if len(windows) < settings.consecutive:
        if before is None or before["dt_s"] < SHORTEST_S:
            text = f"too short to watch: {len(windows)} sample of {watched_s:.2f} s"
            return "not watched", text, details
        judged = [before, *windows]
        details["judged_with_the_sample_before"] = True
    causes = [_causes(window, settings) for window in judged]
    details["samples_above_limit"] = sum(map(bool, causes[-len(windows) :]))
    streak, details["disturbed_by"] = _streak(causes, settings.consecutive)
    found = [streak, gpu_summary.disturbance(samples, details["gpus"], settings)]
    reasons = [reason for reason in found if reason]
    if not settings.guard:
        return "not watched", "the guard is off (watch.guard in the card)", details
    return ("disturbed", "; ".join(reasons), details) if reasons else ("clean", None, details)


def merge(samples: Sequence[Sample], interval_s: float) -> list[Sample]:
    """Samples as windows of about one interval: one shorter than half of it is joined to the one before it."""
    windows: list[Sample] = []
    for sample in samples:
        if windows and (sample["dt_s"] < interval_s / 2 or windows[-1]["dt_s"] < interval_s / 2):
            windows[-1] = join(windows[-1], sample)
        else:
            windows.append(sample)
    return windows


def join(first: Sample, second: Sample) -> Sample:
    """Two samples that follow each other as one; levels (memory, …) are the second's."""
    joined = dict(second)
    for key in ("dt_s", "busy_s", "irq_s", "steal_s", "ours_s", "foreign_s", "attributed_s"):
        joined[key] = first[key] + second[key]
    joined["pressure_s"] = {
        key: first["pressure_s"].get(key, 0.0) + value for key, value in second["pressure_s"].items()
    }
    by_pid: dict[int, dict[str, Any]] = {}
    for entry in [*first["processes"], *second["processes"]]:
        known = by_pid.get(entry["pid"])
        by_pid[entry["pid"]] = entry if known is None else entry | {key: known[key] + entry[key] for key in _PARTS}
    joined["processes"] = sorted(by_pid.values(), key=lambda entry: -entry["in_window_s"])
    joined["full_look"] = first["full_look"] or second["full_look"]
    joined["reaped"] = [*first["reaped"], *second["reaped"]]
    return joined


# ---- what was above the limit in one window --------------------------------------------------------------------------


def _causes(window: Sample, settings: Settings) -> list[tuple[float, str]]:
    """(share, who) of all foreign work above the limit in a window, the largest first."""
    dt_s, limit = window["dt_s"], settings.limit_share
    found: list[tuple[float, str]] = []
    for entry in window["processes"]:
        share = entry["in_window_s"] / dt_s
        if entry["kind"] == "foreign" and share > limit:
            found.append((share, f"{entry['name']} (pid {entry['pid']})"))
    found += _without_pid(window, limit)
    steal = window["steal_s"] / dt_s
    if steal > limit:
        found.append((steal, "steal time (the host gave this machine's CPU to others)"))
    found += _pressure(window, limit)
    return sorted(found, reverse=True)


def _without_pid(window: Sample, limit: float) -> list[tuple[float, str]]:
    """Foreign work that no process seen accounts for: another container's, another user's, or of short-lived processes."""
    dt_s = window["dt_s"]
    share = (window["foreign_s"] - window["attributed_s"]) / dt_s
    # Two counters read one after the other, each in steps of a tick, a CPU at a time.
    if share <= limit + 2 * math.sqrt(window["cpus"]) * TICK_S / dt_s:
        return []
    if not window["full_look"]:
        return [(share, UNNAMED)]
    names = sorted({entry["name"] for entry in window["reaped"]})
    parents = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    hint = f", perhaps short-lived children of {parents}" if parents else ""
    return [(share, f"work without a pid (total CPU minus ours and every process seen{hint})")]


def _pressure(window: Sample, limit: float) -> list[tuple[float, str]]:
    """Tasks that waited for a CPU although one was free and ours did not fill those they may use: a CPU quota."""
    dt_s = window["dt_s"]
    waited = window["pressure_s"].get("cpu_some", 0.0) / dt_s
    allowed = window.get("cpus_ours") or window["cpus"]
    room = window["busy_s"] / dt_s <= window["cpus"] - 1 and window["ours_s"] / dt_s <= allowed - 1
    if waited > limit and room:
        return [(waited, "CPU pressure while CPUs were free (a CPU quota of this container or group?)")]
    return []


def _streak(causes: Sequence[Sequence[tuple[float, str]]], consecutive: int) -> tuple[str | None, list[dict[str, Any]]]:
    """The longest streak of windows above the limit in words, and everyone who was in it; None where none is long enough."""
    best: list[Sequence[tuple[float, str]]] = []
    streak: list[Sequence[tuple[float, str]]] = []
    for found in causes:
        streak = [*streak, found] if found else []
        if len(streak) > len(best):
            best = streak
    if len(best) < consecutive:
        return None, []
    most: dict[str, float] = {}
    for found in best:
        for share, who in found:
            most[who] = max(most.get(who, 0.0), share)
    if len(most) > 1:
        most.pop(UNNAMED, None)
    named = sorted(most.items(), key=lambda item: -item[1])
    who = ", ".join(f"{name} up to {share:.0%} of one core" for name, share in named[:NAMED])
    who += f", and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return (
        f"{who}; {len(best)} samples in a row above the limit",
        [{"who": name, "share": round(share, 3)} for name, share in named],
    )


# ---- the summary -----------------------------------------------------------------------------------------------------


def _summary(samples: Sequence[Sample], windows: Sequence[Sample], settings: Settings) -> dict[str, Any]:
    shares = [
        {key: entry[key] for key in ("pid", "name", "kind", "why") if key in entry}
        | {"share": round(entry["cpu_s"] / entry["over_s"], 3)}
        for window in windows
        for entry in window["processes"]
        if entry["over_s"] > 0
    ]
    foreign = [entry for entry in shares if entry["kind"] == "foreign"]
    return {
        "samples": len(samples),
        "windows": len(windows),
        "interval_s": settings.interval_s,
        "limit_share": settings.limit_share,
        "busiest": max(shares, key=lambda entry: entry["share"], default=None),
        "busiest_foreign": max(foreign, key=lambda entry: entry["share"], default=None),
        "max_foreign_share": _most(windows, "foreign_s"),
        "max_steal_share": _most(windows, "steal_s"),
        "max_pressure": _pressures(windows),
        "ours_share": _ratio(sum(w["ours_s"] for w in windows), sum(w["dt_s"] for w in windows)),
        "server_rss_peak_bytes": _best(max, samples, "server_rss_bytes"),
        "memory_available_min_bytes": _best(min, samples, "memory_available_bytes"),
    }


def _most(windows: Sequence[Sample], key: str) -> float | None:
    return max((round(window[key] / window["dt_s"], 3) for window in windows if window["dt_s"] > 0), default=None)


def _pressures(windows: Sequence[Sample]) -> dict[str, float]:
    most: dict[str, float] = {}
    for window in windows:
        for key, waited_s in window["pressure_s"].items():
            most[key] = max(most.get(key, 0.0), round(waited_s / window["dt_s"], 3))
    return most


def _best(choose: Any, samples: Sequence[Sample], key: str) -> int | None:
    return choose((sample[key] for sample in samples if sample.get(key) is not None), default=None)  # type: ignore[no-any-return]


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole > 0 else None
