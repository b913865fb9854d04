"""Summary + thresholds + the gate's decision or a saved reference → a verdict that explains itself. Pure.

Three things may speak of a figure: a limit of the card, the baseline (``gate.rule``, with error rates), and one saved session
within a stated tolerance (a plain comparison, without any).
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_llmbench.errors import counted, shortened
from pytest_llmbench.gate import messages
from pytest_llmbench.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.gate.decision import Decision
    from pytest_llmbench.records import Baseline, CellResult, Direction, Summary, VerdictKind


@dataclass(frozen=True, slots=True)
class Threshold:
    """A card's promise for one figure, in its unit. floor: hard; target: soft. For latencies both are ceilings."""

    floor: float | None = None
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A saved value to compare with. tolerance: the share by which a median may be worse (0.05 = 5 %)."""

    name: str
    value: float
    runs: int
    when: str
    tolerance: float


@dataclass(frozen=True, slots=True)
class Gated:
    """What the gate says of a cell's figures. decisions, baselines: by figure.

    require: a figure without a baseline fails. strict: what stays inconclusive fails. accept: the reason why the cell's figures start new baselines instead of being compared.
    """

    decisions: Mapping[str, Decision] = field(default_factory=dict)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    require: bool = False
    strict: bool = False
    accept: str | None = None


UNGATED = Gated()


def judge(
    result: CellResult,
    kinds: Sequence[FigureKind],
    thresholds: Mapping[str, Threshold],
    references: Mapping[str, Reference] | None,
    gate: Gated = UNGATED,
) -> tuple[Verdict, ...]:
    """Judge every measured figure of a cell.

    A gated figure gets a verdict always; a companion only where the card gives it a threshold. references: by figure
    name; None = no comparison was asked for. A figure that the reference lacks gets ``no baseline``.
    """
    gated = {kind.name for kind in kinds if kind.gated}
    cell = result.spec.id
    verdicts = []
    for summary in result.summaries:
        if summary.median is None and summary.name in thresholds and result.status == "measured":
            why = summary.reasons[0] if summary.reasons else "there is no value"
            line = f"{name_of(cell, summary)}: the card has a limit for it and there is no number: {why}"
            verdicts.append(Verdict(cell, summary.name, "inconclusive", failed=True, lines=(line,)))
        if summary.median is None or not (summary.name in gated or summary.name in thresholds):
            continue
        found = _judge_one(result, summary, thresholds.get(summary.name), references, gate)
        verdicts.append(_with_numbers(found, gate.decisions.get(summary.name)))
    return tuple(verdicts)


def _judge_one(
    result: CellResult,
    summary: Summary,
    threshold: Threshold | None,
    references: Mapping[str, Reference] | None,
    gate: Gated,
) -> Verdict:
    assert summary.median is not None
    value, cell = summary.median, result.spec.id
    floor = threshold.floor if threshold else None
    target = threshold.target if threshold else None
    if floor is not None and worse_by(value, floor, summary.direction) > 0:
        return _missed(cell, summary, "below floor", "floor", floor)
    decision = gate.decisions.get(summary.name)
    if decision is not None and (decision.kind == "regressed" or decision.fails):
        return _decided(cell, summary, decision, gate)
    reference = references.get(summary.name) if references is not None else None
    if reference is not None and worse_by(value, reference.value, summary.direction) > reference.tolerance:
        return _compared(cell, summary, "regressed", reference, failed=True)
    if target is not None and worse_by(value, target, summary.direction) > 0:
        return _missed(cell, summary, "below target", "target", target)
    if gate.accept is not None:
        return _accepted(cell, summary, gate.accept, gate.baselines.get(summary.name))
    if decision is not None and (decision.kind != "no baseline" or gate.require or reference is None):
        return _decided(cell, summary, decision, gate)
    if reference is not None:
        better = -worse_by(value, reference.value, summary.direction)
        kind: VerdictKind = "improved" if better > reference.tolerance else "ok"
        return _compared(cell, summary, kind, reference, failed=False)
    if references is not None:
        line = f"{name_of(cell, summary)}: {shown(value, summary.unit)}; the saved session has no such figure"
        return Verdict(cell, summary.name, "no baseline", failed=False, lines=(line,), value=value)
    return Verdict(cell, summary.name, "ok", failed=False, lines=(), value=value)


def _decided(cell: str, summary: Summary, decision: Decision, gate: Gated) -> Verdict:
    kind: VerdictKind = "inconclusive" if decision.kind == "measure again" else decision.kind
    baseline = gate.baselines.get(summary.name)
    lines = messages.explain(decision, name_of(cell, summary), summary.unit, baseline, summary.values)
    failed = kind == "regressed" or (kind == "inconclusive" and gate.strict) or (kind == "no baseline" and gate.require)
    failed |= bool(decision.fails)
    if kind == "no baseline" and gate.require:
        lines = (*lines, "a baseline is required (--llmbench-require-baseline)")
    return Verdict(
        cell,
        summary.name,
        kind,
        failed=failed,
        lines=lines,
        value=summary.median,
        reference=decision.reference,
        change=decision.change,
    )


def _with_numbers(verdict: Verdict, decision: Decision | None) -> Verdict:
    """What the gate reckoned stands beside every verdict, whoever's it is: marks and the history are made of it."""
    if decision is None:
        return verdict
    return replace(
        verdict,
        interval=decision.interval,
        resolves=decision.resolves,
        sigma=decision.sigma,
        again=decision.again,
        dip=decision.dip,
        clear=decision.clear,
        control=decision.control,
    )


def _accepted(cell: str, summary: Summary, reason: str, before: Baseline | None) -> Verdict:
    assert summary.median is not None
    was = ""
    if before is not None and before.values:
        middle = statistics.median(before.values)
        was = f"; was {shown(middle, summary.unit)} ({summary.median / middle - 1:+.1%})"
    line = f"{name_of(cell, summary)}: {shown(summary.median, summary.unit)} starts a new baseline{was}; accepted: {reason}"
    return Verdict(cell, summary.name, "no baseline", failed=False, lines=(line,), value=summary.median)


def worse_by(value: float, reference: float, direction: Direction) -> float:
    """How much worse than the reference, as a share of it; negative when better."""
    change = value / reference - 1
    return change if direction == "lower" else -change


def name_of(cell: str, summary: Summary) -> str:
    """``decode[code]`` for the part's own figure, ``decode[code] ttft_ms`` for another."""
    part = cell.partition("[")[0]
    return cell if summary.name.startswith(part) else f"{cell} {summary.name}"


def shown(value: float, unit: str) -> str:
    """A value as people read it, with its unit."""
    return messages.shown(value, unit)


def _missed(cell: str, summary: Summary, kind: VerdictKind, word: str, limit: float) -> Verdict:
    assert summary.median is not None
    is_ceiling = summary.direction == "lower"
    said = f"above {'ceiling' if word == 'floor' else word}" if is_ceiling else kind
    line = (
        f"{name_of(cell, summary)} {said}: {shown(summary.median, summary.unit)}, the card's "
        f"{'ceiling' if is_ceiling and word == 'floor' else word} is {shown(limit, summary.unit)} "
        f"({summary.median / limit - 1:+.1%})"
    )
    return Verdict(
        cell,
        summary.name,
        kind,
        failed=True,
        lines=(line,),
        value=summary.median,
        reference=limit,
        change=summary.median / limit - 1,
    )


def _compared(cell: str, summary: Summary, kind: VerdictKind, reference: Reference, *, failed: bool) -> Verdict:
    assert summary.median is not None
    change = summary.median / reference.value - 1
    lines = (
        f"{name_of(cell, summary)} {kind}: {shown(summary.median, summary.unit)}, was "
        f"{shown(reference.value, summary.unit)} ({change:+.1%}, tolerance {reference.tolerance:.1%})",
        f'saved session "{reference.name}" of {reference.when}, median of {counted(reference.runs, "run")}',
    )
    return Verdict(
        cell,
        summary.name,
        kind,
        failed=failed,
        lines=lines,
        value=summary.median,
        reference=reference.value,
        change=change,
    )


def explain(result: CellResult, verdicts: Sequence[Verdict], *, facts: Sequence[str] = ()) -> str:
    """The message of a cell: what, how much, against what, all runs, where to look. Empty when nothing failed."""
    failed = [v for v in verdicts if v.failed]
    if result.status == "measured" and not failed:
        return ""
    lines: list[str] = []
    if result.status != "measured":
        lines.append(f"{result.spec.id} {result.status}: {result.reasons[0] if result.reasons else 'no result'}")
        lines += [f"  {line}" for line in _others(result.reasons)]
    for verdict in failed:
        lines.append(verdict.lines[0])
        own = [f"  {line}" for line in verdict.lines[1:]]
        lines += [line for line in own if line not in lines]  # figures of a cell have much in common
    told = {verdict.figure for verdict in failed if verdict.interval is not None}
    lines += [f"  {line}" for line in (*facts, *_runs(result, told), *_where(result))]
    return "\n".join(lines)


def _runs(result: CellResult, told: Collection[str]) -> list[str]:
    """What was promised, and the runs of every figure whose runs are not told already."""
    spec = result.spec
    asked = f", up to {spec.max_tokens} tokens each" if spec.max_tokens else ""
    prompt = f" on a prompt of exactly {spec.prompt_tokens} tokens" if spec.prompt_tokens else ""
    lines = [f"promised: {spec.runs} run{'s' if spec.runs > 1 else ''}{prompt}{asked}"]
    for summary in result.summaries:
        if summary.values and summary.name not in told:
            spread = f" (CV {summary.cv:.1%})" if summary.cv is not None else ""
            label = f" [{summary.label}]" if summary.label else ""
            values = " ".join(shown(v, "").strip() for v in summary.values)
            lines.append(f"{summary.name}: runs {values} {summary.unit}{spread}{label}")
    return lines + repeats([(a.run, a.number, a.reason) for a in result.attempts if not a.again])


def repeats(attempts: Sequence[tuple[int, int, str]], limit: int = 160) -> list[str]:
    """A line for the runs that were made more than once, those with one cause together: how often, and why the first time.

    attempts: (run, number, reason). The other reasons are in the record.
    """
    runs = {run: [(number, reason) for one, number, reason in attempts if one == run] for run, _, _ in attempts if run}
    alike: dict[tuple[int, str], list[int]] = {}
    said: dict[tuple[int, str], str] = {}
    for run, made in runs.items():
        again = [reason for number, reason in made if number > 1]
        if again:
            key = len(made), _kind(again[0])
            alike.setdefault(key, []).append(run)
            said.setdefault(key, _first_line(again[0]))
    lines = []
    for (times, kind), several in alike.items():
        why = said[times, kind]
        why = shortened(why, limit)
        who = f"run {several[0]} was" if len(several) == 1 else f"runs {_listed(several)} were each"
        lines.append(f"{who} made {times} times: {why}{'' if len(several) == 1 else ' (and so on)'}")
    return lines


def machine_line(result: CellResult) -> str | None:
    """What the watch saw during the runs that count: foreign load, heat, throttling; None where nothing was watched."""
    seen = [a.details["watch"] for a in result.attempts if a.guard == "clean" and "watch" in a.details]
    if not seen:
        return None
    foreign = max((one["max_foreign_share"] or 0.0 for one in seen), default=0.0)
    words = [f"foreign load at most {foreign:.0%} of one core" if foreign >= 0.01 else "no foreign load"]
    steal = max((one["max_steal_share"] or 0.0 for one in seen), default=0.0)
    words += [f"steal up to {steal:.0%}"] if steal >= 0.01 else []
    gpus = [gpu for one in seen for gpu in one.get("gpus") or ()]
    heat = [gpu["temperature_max_c"] for gpu in gpus if gpu.get("temperature_max_c") is not None]
    words += [f"{max(heat):.0f} °C"] if heat else []
    throttled = [gpu["throttled_share"] for gpu in gpus if gpu.get("throttled_share") is not None]
    if throttled:
        words.append(f"throttled {max(throttled):.0%} of the time" if max(throttled) > 0 else "not throttled")
    return f"machine: {', '.join(words)}"


def _others(reasons: Sequence[str]) -> list[str]:
    """A line for each reason but the first; what several runs have in common is said once, with the runs."""
    runs: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for reason in reasons:
        line = _first_line(reason)
        found = _RUN.match(line)
        kind = _kind(line[found.end() :]) if found else line
        first.setdefault(kind, line)
        runs.setdefault(kind, []).append(found[1] if found else "")
    lines = []
    for number, (kind, several) in enumerate(runs.items()):
        if number:
            lines.append(first[kind])
        if len(several) > 1:
            lines.append(f"the same in {len(several) - 1} more: run {_listed(several[1:])}")
    return lines


_RUN = re.compile(r"run (\d+) of \d+: ")
_COUNTED = re.compile(r"\b(start|run|attempt|pid|port) \d+|\d+\.\d+ s\b")
LISTED = 6
"""More than so many of a kind are counted, not listed."""


def _kind(reason: str) -> str:
    """A reason's first line without what differs from run to run: numbers of starts and attempts, seconds."""
    return _COUNTED.sub(r"\1", _first_line(reason))


def _listed(several: Sequence[object], most: int = LISTED) -> str:
    more = len(several) - most
    return ", ".join(map(str, several[:most])) + (f" and {more} more" if more > 0 else "")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _where(result: CellResult) -> list[str]:
    raw = f"raw: {result.raw_file}" if result.raw_file else ""
    logs = f"server log: {_listed(result.server_logs)}" if result.server_logs else ""
    return [line for line in (raw, logs) if line]
