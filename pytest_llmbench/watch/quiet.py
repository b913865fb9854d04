"""The quiet check: a record every 10 s with no ignore list, that repeats nothing (METHOD). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def summarise(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """How many samples were above the limit, who, and how much.

    ``above``: samples with a process above the limit; ``who``: per name its samples above and its largest share of one
    core; ``without_pid_above``, ``steal_above``: samples in which that was above it; ``max_share``: of any process.
    """
    samples = above = without_above = steal_above = 0
    most: float | None = None
    who: dict[str, dict[str, Any]] = {}
    for record in records:
        samples += 1
        limit = record["limit_share"]
        above += bool(record["processes"])
        without_above += record["without_pid"] > limit
        steal_above += record["steal"] > limit
        if record["busiest"] is not None:
            most = max(most or 0.0, record["busiest"]["share"])
        shares: dict[str, float] = {}
        for process in record["processes"]:  # two of one name in one sample: one sample above, the larger share
            shares[process["name"]] = max(shares.get(process["name"], 0.0), process["share"])
        for name, share in shares.items():
            entry = who.setdefault(name, {"name": name, "samples": 0, "max_share": 0.0})
            entry["samples"] += 1
            entry["max_share"] = max(entry["max_share"], share)
    return {
        "samples": samples,
        "above": above,
        "who": sorted(who.values(), key=lambda entry: (-entry["samples"], -entry["max_share"])),
        "max_share": most,
        "without_pid_above": without_above,
        "steal_above": steal_above,
    }
