"""Every published figure again, from the raw records and the contract alone.

``python -m pytest_llmbench.verify RUN`` says which figures of a run's report match. RUN is a run's folder, the one
with report.json in it.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import stats
from pytest_llmbench.client.parse import parse
from pytest_llmbench.contract import cell_from_json
from pytest_llmbench.errors import InputError, printable
from pytest_llmbench.journal import Journal, read_lines, trace_from_json
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.part import RunFacts, Sent, read_run
from pytest_llmbench.measure.validity import Bounds
from pytest_llmbench.records import Attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.records import CellResult, CellSpec, Summary

# Floats go through JSON unchanged; this only forgives another order of additions.
_WITHIN = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """One published value beside the one that follows from raw. figure: name, and which of its values."""

    cell: str
    figure: str
    published: Any
    recomputed: Any

    @property
    def matches(self) -> bool:
        return _same(self.published, self.recomputed)


def recompute(run_folder: Path) -> dict[str, CellResult]:
    """Every promised cell from ``contract.json`` and ``raw/`` alone, by cell id; a cell without raw records is missing.

    The same pure code reads the records as did when they were made. Raises InputError where the folder is no run's.
    """
    contract = _json(run_folder / "contract.json")
    bounds = Bounds(**contract["validity"])
    return {
        spec.id: _cell(run_folder, spec, bounds, contract["card"]) for spec in map(cell_from_json, contract["cells"])
    }


def check(run_folder: Path) -> list[Check]:
    """Each published value of the run's report beside its recomputed one: medians, values of runs, CVs, headline.

    Raises InputError where the folder is no run's.
    """
    report = _json(run_folder / "report.json")
    cells = recompute(run_folder)
    contract = _json(run_folder / "contract.json")
    for spec in (cell_from_json(entry["promised"]) for entry in report["searched"]):
        cells[spec.id] = _cell(run_folder, spec, Bounds(**contract["validity"]), contract["card"])
    # What was promised must be there, with the status that raw gives it (where raw can: a server that never started left
    # no request).
    promised = [entry["id"] for entry in contract["cells"]]
    found = [Check("report", "cells", [entry["id"] for entry in report["cells"]], promised)]
    for entry in report["cells"] + report["searched"]:
        status = cells[entry["id"]].status if entry["id"] in cells else None
        if "measured" in (entry["status"], status):
            found.append(Check(entry["id"], "status", entry["status"], status))
        names = [figure["name"] for figure in entry["figures"]]
        lost = [s.name for s in cells[entry["id"]].summaries if s.name not in names] if entry["id"] in cells else []
        found += [Check(entry["id"], f"{name} median", None, own_median(cells[entry["id"]], name)) for name in lost]
        result = cells.get(entry["id"])
        own = {s.name: s for s in result.summaries} if result else {}
        for figure in entry["figures"]:
            own_figure = own.get(figure["name"])
            for name in ("median", "values", "cv"):
                value = getattr(own_figure, name) if own_figure else None
                found.append(Check(entry["id"], f"{figure['name']} {name}", figure[name], _plain(value)))
            if figure["again"]:
                value = list(stats.again_medians(result.attempts, figure["name"])) if result else []
                found.append(Check(entry["id"], f"{figure['name']} again", figure["again"], value))
    found += _beside(run_folder, report)
    found += _pairs(run_folder, report, cells)
    head, results = report["headline"], list(cells.values())
    again = {name: stats.headline(results, name) for name in ("decode_tok_s", "words_s", "characters_s")}
    again |= {"decode_spread_cv": stats.headline_spread(results), "fit_largest": stats.fit_largest(results)}
    again["seconds_for_500_words"] = 500 / again["words_s"] if again["words_s"] else None
    return found + [Check("headline", name, head[name], value) for name, value in again.items()]


def _beside(run_folder: Path, report: dict[str, Any]) -> Iterator[Check]:
    """What the control gave before each attempt, beside what follows from the control's own raw records."""
    known: dict[str, dict[str, dict[str, float | None]]] = {}
    for entry in report["cells"]:
        for attempt in entry["attempts"]:
            seen = attempt["details"].get("control") or {}
            turns = seen.get("attempts") or [seen["attempt"]] if seen.get("attempt") or seen.get("attempts") else []
            session = attempt["details"].get("session", report["session"])
            folder = "control" if session == report["session"] else f"control-{session}"
            if turns and folder not in known:
                known[folder] = _turns(run_folder / folder)
            for name in (name for name in ("decode_tok_s", "prefill_tok_s", "ttft_ms") if turns and seen.get(name)):
                again = [value for turn in turns if (value := known[folder].get(turn, {}).get(name)) is not None]
                which = f"run {attempt['run']} attempt {attempt['number']}: the control's {name}"
                yield Check(entry["id"], which, seen[name], statistics.median(again) if again else None)


def _turns(folder: Path) -> dict[str, dict[str, float | None]]:
    """A control's valid figures by request."""
    contract = _json(folder / "contract.json")
    (spec,) = map(cell_from_json, contract["cells"])
    path = folder / Journal.raw_file(spec.id)
    attempts = attempts_of(read_lines(path), spec, Bounds(**contract["validity"])) if path.exists() else ()
    return {one.request_ids[0]: {f.name: f.value for f in one.figures if f.valid} for one in attempts}


def _pairs(folder: Path, report: dict[str, Any], cells: dict[str, CellResult]) -> Iterator[Check]:
    """The values of a direct comparison's pairs: the new side's from this folder, the old side's from the one in it."""
    compared = [(cell, one) for cell in report["cells"] for one in cell["figures"] if one.get("compared")]
    if not compared:
        return
    sides = {"new": cells, "old": recompute(folder / "against")}
    for cell, figure in compared:
        for pair in figure["compared"]["pairs"]:
            for side, results in sides.items():
                own = _of_starts(results[cell["id"]], figure["name"], pair[f"{side}_starts"])
                what = f"{figure['name']} pair {pair['number']} {side}"
                yield Check(cell["id"], f"{what} runs", pair[f"{side}_runs"], list(own.values))
                if pair["dropped"] is None:
                    yield Check(cell["id"], what, pair[side], own.median)


def _of_starts(result: CellResult, name: str, starts: Sequence[int]) -> Summary:
    kind = next(kind for kind in PARTS[result.spec.part].kinds if kind.name == name)
    return stats.summarise(result.spec, [one for one in result.attempts if one.server_start in starts], kind)


def own_median(result: CellResult, name: str) -> float | None:
    return result.summary(name).median


def _cell(folder: Path, spec: CellSpec, bounds: Bounds, card: str) -> CellResult:
    path = folder / Journal.raw_file(spec.id)
    attempts = list(attempts_of(read_lines(path), spec, bounds)) if path.exists() else []
    return stats.conclude(spec, card, attempts, PARTS[spec.part].kinds, raw_file=str(path))


def attempts_of(records: Iterator[dict[str, Any]], spec: CellSpec, bounds: Bounds) -> Iterator[Attempt]:
    """The attempts that a cell's raw records hold, warm-ups left out, in the order in which they were made."""
    grouped: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for record in records:
        if record["run"] > 0:
            grouped.setdefault((record.get("again", 0), record["run"], record["attempt"]), []).append(record)
    for (again, run, number), group in grouped.items():
        if len(group) == spec.requests_per_run:  # fewer: the writer was killed, and the run was never read
            yield replace(_attempt(spec, run, number, group, bounds), again=again)


def _attempt(spec: CellSpec, run: int, number: int, group: Sequence[dict[str, Any]], bounds: Bounds) -> Attempt:
    facts = RunFacts(**group[0]["facts"])
    part = PARTS[spec.part]
    traces = [trace_from_json(record) for record in group]
    sent = [Sent(trace, parse(trace), record["prompt"]["tokens"]) for trace, record in zip(traces, group, strict=True)]
    reading = read_run(part, part.sized(spec, facts.context), sent, bounds, facts)
    return Attempt(
        cell=spec.id,
        run=run,
        number=number,
        reason="read again",
        server_start=group[0]["server_start"],
        guard=facts.guard,
        wall=traces[0].wall,
        t_start_ns=min(trace.t_call_ns for trace in traces),
        t_end_ns=max(trace.t_end_ns for trace in traces),
        request_ids=tuple(trace.request_id for trace in traces),
        figures=reading.figures,
        error=facts.error,
        examined_for_cache=sum(one.answer.cached_tokens is not None for one in sent),
        details=reading.details,
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_WITHIN)
    return bool(one == other)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        if path.with_name("contract.json").exists():
            reason = f"the session was cut short before it wrote {path.name}"
            raise InputError(
                "RUN", str(path.parent), reason, "--llmbench-resume finishes it, in a new folder"
            ) from None
        raise InputError(
            "RUN",
            str(path.parent),
            f"there is no {path.name} in it",
            "name a run's folder: .llmbench/runs/SESSION/CARD",
        ) from None
    except ValueError as exc:
        raise InputError("RUN", str(path), f"is not JSON: {exc}") from None


def main(words: list[str]) -> int:
    """0, 1 where a figure does not follow from raw, or 2 where there is nothing to check."""
    if len(words) != 1:
        sys.stderr.write("usage: python -m pytest_llmbench.verify RUN\n")
        return 2
    try:
        checks = check(Path(words[0]))
    except InputError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    except (OSError, ValueError, KeyError, TypeError) as exc:
        sys.stderr.write(printable(f"{words[0]}: the run's files are damaged: {type(exc).__name__}: {exc}") + "\n")
        return 2
    wrong = [one for one in checks if not one.matches]
    for one in wrong:
        said = f"{one.cell} {one.figure}: published {one.published}, from raw {one.recomputed}"
        sys.stdout.write(printable(said) + "\n")
    sys.stdout.write(f"{len(checks) - len(wrong)} of {len(checks)} published values follow from raw\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
