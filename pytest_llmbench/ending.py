"""The end of one run: its documents, what it was asked to save, and the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.files import now, write_json, write_text
from pytest_llmbench.history import saved
from pytest_llmbench.measure import PARTS
from pytest_llmbench.report import document, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.report.form import Document
    from pytest_llmbench.session import SetupRun


def finish(run: SetupRun) -> Document:
    """Write report.json and table.md, save what was asked for, and remember the run. What cannot be written is said in the run."""
    if run.watch is not None:
        run.environment["quiet_check"] = run.watch.quiet()
    if run.control is not None:
        run.forgotten += run.control.finish()
    run.environment["engine_log"] = run.engine_logs()
    if run.old is not None:
        run.old.finish()
        run.not_written += run.old.run.not_written
    report = _report(run)
    content = report.model_dump(mode="json")
    if not run.leaves_nothing:
        run.table = table.render(report)
        _keep(run, str(run.folder / "report.json"), lambda: write_json(run.folder / "report.json", content))
        _keep(run, str(run.folder / "table.md"), lambda: write_text(run.folder / "table.md", run.table))
    if (extra := run.wishes.json) is not None:
        _keep(run, f"--llmbench-json = {str(extra)!r}", lambda: write_json(extra, content))
    _save(run, complete=report.complete)
    if not run.leaves_nothing:
        run.forgotten += run.gate.remember(content, run.folder, interrupted=run.interrupted)
    if (journal := run.journal) is not None:
        said = {"complete": report.complete, "problems": run.problems, "forgotten": run.forgotten}
        _keep(run, str(run.folder / "journal.jsonl"), lambda: journal.event("report", **said))
    return report


def _report(run: SetupRun) -> Document:
    pairs = run.old.pairs if run.old is not None else None
    going_on = run.preparation.going_on
    return document.build(
        session=run.session,
        started=run.started,
        finished=now(),
        card=run.card.as_json(),
        contract=run.preparation.contract,
        environment=run.environment,
        results=run.results,
        searched=run.searched,
        verdicts=run.verdicts,
        problems=run.problems,
        probe=run.wishes.probe,
        history=run.wishes.gating.history is not None,
        canary=run.planted.to_json() if run.planted is not None else None,
        last_canary=run.gate.last_canary(),
        against=run.compared,
        compared=pairs.figures_json() if pairs is not None else {},
        plan_changes=run.wishes.plan_changes,
        continues=going_on.to_json() if going_on else None,
        replaced=going_on.replaced(run.card.id) if going_on else None,
        parts=PARTS,
        base=run.folder,
        seen={result.spec.id: run.gate.control_seen(result) for result in run.results.values()},
        control=run.control_facts(),
    )


def _save(run: SetupRun, *, complete: bool) -> None:
    storage, results = run.wishes.storage, run.results
    for name in run.wishes.save:
        why_not = saved.why_not_saved(storage, name, run.card.id, results, complete)
        if why_not is None:
            try:
                saved.save(
                    storage,
                    name,
                    key=run.key,
                    when=run.started,
                    run_folder=run.folder.name,
                    results=results.values(),
                )
            except OSError as exc:
                why_not = f"{exc.filename or 'its file'} cannot be written: {exc.strerror}"
        run.saved[name] = why_not


def _keep(run: SetupRun, what: str, write: Callable[[], object]) -> None:
    """Write one of the documents; one that cannot be written takes the others not with it."""
    try:
        write()
    except OSError as exc:
        run.not_written.append(f"{what}: cannot be written: {exc.strerror}")
