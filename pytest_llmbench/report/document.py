"""The report document: the truth about one run of one card, as a file. ``python -m pytest_llmbench.report.document``
prints its JSON Schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__, stats
from pytest_llmbench.files import relative
from pytest_llmbench.journal import plain
from pytest_llmbench.report.form import (
    CellEntry,
    ComparedEntry,
    ControlEntry,
    ControlFigure,
    Document,
    FigureEntry,
    Headline,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.contract import Contract
    from pytest_llmbench.figure_kinds import PartFigures
    from pytest_llmbench.records import CellResult, CellSpec, ControlSeen, Summary, Verdict


def build(
    *,
    session: str,
    started: str,
    finished: str,
    card: Mapping[str, Any],
    contract: Contract,
    environment: Mapping[str, Any],
    results: Mapping[str, CellResult],
    searched: Mapping[str, CellResult],
    verdicts: Mapping[str, Sequence[Verdict]],
    problems: Sequence[str],
    parts: Mapping[str, PartFigures],
    base: Path,
    probe: bool = False,
    history: bool = True,
    canary: Mapping[str, Any] | None = None,
    last_canary: str | None = None,
    plan_changes: Mapping[str, Any] | None = None,
    continues: Mapping[str, Any] | None = None,
    replaced: Mapping[str, Mapping[str, Any]] | None = None,
    seen: Mapping[str, Mapping[str, ControlSeen]] | None = None,
    control: Mapping[str, Any] | None = None,
    against: Mapping[str, Any] | None = None,
    compared: Mapping[str, Mapping[str, Any]] | None = None,
) -> Document:
    """Put the document together. parts: the figures of every part; seen: what the control gave beside each figure of a cell,
    where no verdict says more; base: the folder that its paths are relative to.

    A promised cell without a result is in it as ``missing`` (``failed`` where the run never started).
    """
    notes = stats.fit_notes(results.values())
    cells = tuple(
        _cell(
            spec,
            parts.get(spec.part),
            results.get(spec.id),
            verdicts.get(spec.id, ()),
            problems,
            base,
            (seen or {}).get(spec.id, {}),
            (compared or {}).get(spec.id),
        ).model_copy(
            update={
                "notes": (
                    *notes.get(spec.id, ()),
                    *(stats.again_notes(results[spec.id]) if spec.id in results else ()),
                ),
                "sessions": _sessions(results.get(spec.id), session),
                "replaced": _earlier((replaced or {}).get(spec.id), base),
            }
        )
        for spec in contract.cells
    )
    sizes = sorted(searched.values(), key=lambda one: one.spec.context or 0)
    decode = list(results.values())
    words = stats.headline(decode, "words_s")
    return Document(
        llmbench_report=1,
        tool=f"pytest-llmbench {__version__}",
        session=session,
        started=started,
        finished=finished,
        complete=all(cell.status in {"measured", "unsupported"} for cell in cells),
        probe=probe,
        history=history,
        canary=dict(canary) if canary else None,
        last_canary=last_canary,
        plan_changes=dict(plan_changes or {}),
        continues=dict(continues) if continues else None,
        against=dict(against) if against else None,
        card=dict(card),
        contract=contract.to_json(),
        environment=dict(environment),
        headline=Headline(
            decode_tok_s=stats.headline(decode, "decode_tok_s"),
            words_s=words,
            characters_s=stats.headline(decode, "characters_s"),
            seconds_for_500_words=500 / words if words else None,
            decode_spread_cv=stats.headline_spread(decode),
            fit_largest=stats.fit_largest([*results.values(), *sizes]),
        ),
        cells=cells,
        searched=tuple(
            _cell(one.spec, parts.get(one.spec.part), one, (), (), base).model_copy(
                update={"sessions": _sessions(one, session)}
            )
            for one in sizes
        ),
        control=ControlEntry.model_validate(control) if control is not None else None,
        problems=tuple(problems),
    )


def _cell(
    spec: CellSpec,
    part: PartFigures | None,
    result: CellResult | None,
    verdicts: Sequence[Verdict],
    problems: Sequence[str],
    base: Path,
    seen: Mapping[str, ControlSeen] | None = None,
    compared: Mapping[str, Any] | None = None,
) -> CellEntry:
    attempts = result.attempts if result else ()
    return CellEntry(
        id=spec.id,
        part=spec.part,
        status=result.status if result else "failed" if problems else "missing",
        reasons=result.reasons if result else tuple(problems) or ("the session ended before this cell was measured",),
        promised=plain(spec),
        headline=part.headline if part else None,
        figures=tuple(
            _figure(part, s, verdicts, (seen or {}).get(s.name), (compared or {}).get(s.name)) for s in result.summaries
        )
        if result and part
        else (),
        attempts=tuple(plain(a) for a in attempts),
        requests_examined_for_cache=sum(a.examined_for_cache for a in attempts),
        requests_with_cached_tokens=sum(
            a.details.get("cached_requests", int(bool(a.details.get("cached_tokens")))) for a in attempts
        ),
        sessions=(),
        replaced=None,
        notes=(),
        raw_file=relative(result.raw_file, base) if result and result.raw_file else None,
        server_logs=tuple(relative(log, base) for log in result.server_logs) if result else (),
    )


def _sessions(result: CellResult | None, session: str) -> tuple[str, ...]:
    attempts = result.attempts if result else ()
    return tuple(dict.fromkeys(a.details.get("session", session) for a in attempts))


def _earlier(replaced: Mapping[str, Any] | None, base: Path) -> dict[str, Any] | None:
    return None if replaced is None else dict(replaced) | {"raw_file": relative(replaced["raw_file"], base)}


def _figure(
    part: PartFigures,
    summary: Summary,
    verdicts: Sequence[Verdict],
    seen: ControlSeen | None,
    compared: Mapping[str, Any] | None,
) -> FigureEntry:
    kind = next(k for k in part.kinds if k.name == summary.name)
    verdict = next((v for v in verdicts if v.figure == summary.name), None)
    control = verdict.control if verdict is not None and verdict.control is not None else seen
    return FigureEntry(
        name=summary.name,
        unit=summary.unit,
        direction=summary.direction,
        definition=kind.definition,
        median=summary.median,
        values=summary.values,
        promised_runs=summary.promised_runs,
        cv=summary.cv,
        reasons=summary.reasons,
        label=summary.label,
        verdict=verdict.kind if verdict else None,
        reference=verdict.reference if verdict else None,
        change=verdict.change if verdict else None,
        interval=verdict.interval if verdict else None,
        resolves=verdict.resolves if verdict else None,
        sigma=verdict.sigma if verdict else None,
        again=verdict.again if verdict else (),
        dip=verdict.dip if verdict else False,
        clear=verdict.clear if verdict else None,
        control=ControlFigure.model_validate(plain(control)) if control is not None else None,
        explanation=verdict.lines if verdict else (),
        compared=ComparedEntry.model_validate(compared) if compared else None,
    )


def schema() -> dict[str, Any]:
    """The document's JSON Schema (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}


def packaged_schema() -> dict[str, Any]:
    """The schema file that the package ships; a test holds it equal to ``schema()``."""
    text = files("pytest_llmbench.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201 - this is what it is for
