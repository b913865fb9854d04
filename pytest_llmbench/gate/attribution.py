"""A change of a figure, broken down into what is known to have changed, with an honest rest. Pure.

Only what a model justifies gets a share of the change; everything else that differs is listed beside it. The models, on logs
(shares add up there), each stated where it is used:

- **control**: beta times the control's change, beta as history earned it (``gate/control.py``).
- **drafts**: decode goes with the tokens that one pass of the model yields, predicted / (predicted - accepted), at a pass's unchanged
  cost. (Each pass gives its own token and the accepted drafts, so passes = predicted - accepted.)
- **prompt**: TTFT goes with the number of prompt tokens, at unchanged prefill speed.
- **queueing**: time between sending and the slot's launch is part of TTFT: what it grew by, in ms.
- **clock**: prefill is bound by arithmetic and goes with the SM clock; decode of one request is bound by memory and goes with the
  memory clock. "At most": a part that is bound by something else does not go with it. With a control that pays, the clocks are what
  the control shows, and get no share of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ALSO, EXPLAINS = "changed since the baseline: ", " explains about "
ALIKE = 0.002
"""Relative differences of numbers below this are not worth a word; shares below it are left to the rest."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A named part of a change. share: of the figure, signed like the change (-0.094 = 9.4 % lower). text: with the numbers."""

    name: str
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """change: of the figure, as a share. contributions: what a model explains, the largest first. rest: what none does.

    also: what else is different, without a share. lines: all of it in words, most important first.
    """

    change: float
    contributions: tuple[Contribution, ...]
    rest: float
    also: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        parts = [f"{c.text}{EXPLAINS}{c.share:+.1%} of {self.change:+.1%}" for c in self.contributions]
        rest = [f"rest, not explained: {self.rest:+.1%}"] if parts else []
        return (*parts, *rest, *([f"{ALSO}{'; '.join(self.also)}"] if self.also else []))


@dataclass(frozen=True, slots=True)
class ControlChange:
    """The control's change as a share of its center, signed as its figure, and what of it is this figure's (``ControlFit.beta``).

    pays: it is used for this figure; otherwise it is only said.
    """

    change: float
    beta: float
    pays: bool


def attribute(
    figure: str,
    reference: float,
    value: float,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    control: ControlChange | None = None,
) -> Attribution:
    """Break down a figure's change from reference to value.

    figure: its name (``decode_tok_s``, ``ttft_ms`` …), which says what model fits. before, after: facts as ``facts.of_cell``
    gives them, of a baseline's session and of this one. Raises ValueError for values that are not positive.
    """
    if not (0 < reference < math.inf and 0 < value < math.inf):
        raise ValueError(f"a change from {reference} to {value} has no share")
    total = math.log(value / reference)
    found: list[Contribution] = []
    used: set[str] = set()
    if control is not None and control.pays:
        part = control.beta * math.log1p(control.change)
        found.append(
            Contribution(
                "control", math.expm1(part), f"machine (control {control.change:+.1%}, beta {control.beta:.2f})"
            )
        )
    for model in (_drafts, _prompt, _queue):
        if one := model(figure, reference, before, after):
            found.append(one)
            used |= {one.name}
    if control is None or not control.pays:
        clock = _clock(figure, before, after)
        if clock is not None:
            found.append(clock)
            used.add(clock.name)
    kept = sorted((c for c in found if abs(c.share) >= ALIKE), key=lambda c: -abs(c.share))
    rest = math.expm1(total - math.fsum(math.log1p(c.share) for c in kept))
    also = _also(before, after, used, math.expm1(total))
    if control is not None and not control.pays and abs(control.change) >= ALIKE:
        also.insert(0, f"control {control.change:+.1%} (not used for this figure)")
    return Attribution(math.expm1(total), tuple(kept), rest, tuple(also))


def tokens_per_pass(facts: Mapping[str, Any]) -> float | None:
    """Tokens that one pass of the model yields with drafts: predicted / (predicted - accepted); None where not known."""
    predicted, accepted = facts.get("predicted_n"), facts.get("draft_n_accepted")
    if predicted is None or accepted is None or not 0 <= accepted < predicted:
        return None
    return float(predicted / (predicted - accepted))


def _drafts(figure: str, _reference: float, before: Mapping[str, Any], after: Mapping[str, Any]) -> Contribution | None:
    old, new = tokens_per_pass(before), tokens_per_pass(after)
    if old is None or new is None or "decode" not in figure:
        return None
    rates = [_acceptance(facts) for facts in (before, after)]
    shown = f", acceptance {rates[0]:.0%} -> {rates[1]:.0%}" if None not in rates else ""
    return Contribution("drafts", new / old - 1, f"drafts {old:.2f} -> {new:.2f} tokens a pass{shown}")


def _acceptance(facts: Mapping[str, Any]) -> float | None:
    drafted, accepted = facts.get("draft_n"), facts.get("draft_n_accepted")
    return accepted / drafted if drafted and accepted is not None else None


def _prompt(figure: str, _reference: float, before: Mapping[str, Any], after: Mapping[str, Any]) -> Contribution | None:
    old, new = before.get("prompt_tokens"), after.get("prompt_tokens")
    if not old or not new or old == new or not figure.startswith("ttft"):
        return None
    return Contribution("prompt", new / old - 1, f"prompt {old:,.0f} -> {new:,.0f} tokens")


def _queue(figure: str, reference: float, before: Mapping[str, Any], after: Mapping[str, Any]) -> Contribution | None:
    old, new = before.get("queue_ms"), after.get("queue_ms")
    if old is None or new is None or not figure.startswith("ttft") or new - old <= -reference:
        return None
    return Contribution("queue", (new - old) / reference, f"queueing {old:,.0f} -> {new:,.0f} ms")


def _clock(figure: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Contribution | None:
    by_arithmetic = figure.startswith(("prefill", "ttft", "server_prefill"))
    if not by_arithmetic and not figure.startswith(("decode", "server_decode")):
        return None
    key, name = ("sm_mhz", "clock") if by_arithmetic else ("memory_mhz", "memory clock")
    old, new = before.get(key), after.get(key)
    if not old or not new:
        return None
    ratio = new / old
    share = (1 / ratio if figure.startswith("ttft") else ratio) - 1
    return Contribution(key, share, f"{name} {old:,.0f} -> {new:,.0f} MHz")


_WORDS = {
    "engine": ("engine", ""),
    "driver": ("driver", ""),
    "kernel": ("kernel", ""),
    "governor": ("CPU governor", ""),
    "layers_offloaded": ("layers on the GPU", ""),
    "weights_mib": ("weights", "MiB"),
    "kv_mib": ("KV cache", "MiB"),
    "compute_mib": ("compute buffers", "MiB"),
    "n_ctx": ("context", "tokens"),
    "n_slots": ("slots", ""),
    "flash_attention": ("flash attention", ""),
    "cache_types": ("KV types", ""),
    "sm_mhz": ("clock", "MHz"),
    "memory_mhz": ("memory clock", "MHz"),
    "power_limit_w": ("power limit", "W"),
    "throttled_share": ("throttled", "%"),
    "power_capped_share": ("held at the power limit", "%"),
    "temperature_c": ("GPU temperature", "°C"),
    "draft_n_accepted": ("accepted drafts", ""),
    "prompt_tokens": ("prompt", "tokens"),
    "queue_ms": ("queueing", "ms"),
    "cpu_pressure": ("CPU pressure", "%"),
    "steal_share": ("CPU time taken by the host", "%"),
    "foreign_share": ("foreign work, of one core", "%"),
}
"""What can be different, in the order in which it is said: what somebody changed first, what the machine did last."""
_COVERED = {"drafts": "draft_n_accepted", "prompt": "prompt_tokens", "queue": "queue_ms"}
_LEAST = {"%": 0.02, "°C": 3.0, "ms": 1.0}
"""Differences that are worth a word, of what varies by itself."""
_ONLY_MORE = {
    "throttled_share",
    "power_capped_share",
    "temperature_c",
    "queue_ms",
    "cpu_pressure",
    "steal_share",
    "foreign_share",
}
"""Burdens: that there is less of them than before explains no slowdown."""
_BESIDE = 0.1
"""A burden's share that grew by less than this part of the change is beside the point."""


def _also(before: Mapping[str, Any], after: Mapping[str, Any], used: set[str], change: float) -> list[str]:
    covered = used | {_COVERED[name] for name in used if name in _COVERED}
    lines = []
    for key, (name, unit) in _WORDS.items():
        old, new = before.get(key), after.get(key)
        if key in covered or old is None or new is None or _alike(old, new, unit):
            continue
        if key in _ONLY_MORE and (new < old or (unit == "%" and new - old < _BESIDE * abs(change))):
            continue
        lines.append(f"{name} {_shown(old, unit)} -> {_shown(new, unit)}{'' if unit in {'', '%'} else f' {unit}'}")
    if (
        before.get("engine") == after.get("engine")
        and before.get("engine_sha256") != after.get("engine_sha256")
        and before.get("engine_sha256")
        and after.get("engine_sha256")
    ):
        lines.insert(0, f"engine: the same version {after.get('engine')}, another binary")
    return lines


def _alike(old: Any, new: Any, unit: str) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(old, bool):
        return abs(new - old) < _LEAST.get(unit, 0.0) or abs(new - old) <= ALIKE * abs(old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):  # one of them was in a file
        return list(old) == list(new)
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_alike(old[k], new[k], unit) for k in old)
    return bool(old == new)


def _shown(value: Any, unit: str) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{device} {mib:,.0f}" for device, mib in value.items())
    if isinstance(value, list | tuple):
        return "/".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    if unit == "%":
        return f"{value:.0%}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
