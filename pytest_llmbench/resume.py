"""What an earlier run of the same setup left, taken over into a new one: resume and supplement (METHOD, "Supplement").

The new run's folder gets copies of the raw records, texts and server logs of what is taken over, so that every figure of
its document follows from it alone; the earlier folder stays as it is.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_llmbench.contract import cell_from_json
from pytest_llmbench.errors import InputError
from pytest_llmbench.fit_search import size_of
from pytest_llmbench.journal import Journal, read_lines
from pytest_llmbench.records import Attempt, Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_llmbench.records import CellSpec

LISTED = 12
"""More differences than so many are counted, not listed."""
LAST = "last"
FLAGS = {"resume": "--llmbench-resume", "supplement": "--llmbench-supplement"}
# What must be the same before two sessions' numbers may stand in one document.
_SAME = ("identity", "engine", "validity", "request_fields")


@dataclass(frozen=True, slots=True)
class Continue:
    """What a caller wants to go on with. run: a session's id, a run's folder, or ``last``.

    reason: why parts are replaced (a supplement's, stated beforehand). parts: those that are replaced whole; None: only
    cells without a valid result are measured.
    """

    kind: Literal["resume", "supplement"]
    run: str
    reason: str | None = None
    parts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier run. attempts: by cell, each with the session that made it; statuses: of the cells that were concluded.

    searched: the failed sizes of ``fit`` below which the finer search came to its end, with the largest that answered.
    judged: the cells that got their verdicts.
    """

    folder: Path
    session: str
    contract: Mapping[str, Any]
    attempts: Mapping[str, tuple[Attempt, ...]]
    statuses: Mapping[str, tuple[str, tuple[str, ...]]]
    last_start: int
    searched: Mapping[str, int | None] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()

    @property
    def cells(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.contract["cells"])

    @property
    def has_report(self) -> bool:
        """Whether the session came to write it; one that was killed did not, and is not finished."""
        return (self.folder / "report.json").exists()

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Promised cells that were never concluded or judged, or whose finer search was cut short."""
        return tuple(
            cell["id"]
            for cell in self.cells
            if cell["id"] not in self.statuses or self._awaits_judgement(cell["id"]) or self._cut_short(cell["id"])
        )

    def _awaits_judgement(self, cell: str) -> bool:
        """Measured, and killed before its verdict: in the middle of measuring it again, as a rule."""
        return self.statuses[cell][0] == "measured" and cell not in self.judged and not self.contract.get("probe")

    def of_cell(self, cell: str) -> tuple[Attempt, ...]:
        """The attempts of a concluded cell, without a fresh server's whose runs a kill may have cut short."""
        made = self.attempts.get(cell, ())
        last = max((one.again for one in made), default=0)
        return tuple(one for one in made if cell in self.judged or not last or one.again < last)

    def _cut_short(self, cell: str) -> bool:
        plan = (self.contract.get("card_content") or {}).get("plan") or {}
        return (
            bool((plan.get("fit") or {}).get("refine"))
            and size_of(cell) is not None
            and bool(self.attempts.get(cell))
            and self.statuses[cell][0] in {"failed", "unsupported"}
            and cell not in self.searched
        )


class NothingToGoOnError(InputError):
    """There is no run of this card to go on with, or nothing is left in it (done)."""

    done = False


class NothingLeftError(NothingToGoOnError):
    """Everything that the run promised is measured."""

    done = True


def find(storage: Path, card: str, wish: Continue) -> Path:
    """The folder of the earlier run. Raises NothingToGoOnError that says what there is."""
    runs = storage / "runs"
    if wish.run == LAST:
        resumed: set[str] = set()
        for folder in sorted(runs.glob(f"*/{card}"), reverse=True):
            if not (folder / "contract.json").exists():
                continue  # killed before it promised anything
            one = read(folder)
            resumed.add((one.contract.get("continues") or {}).get("session", ""))
            if one.session in resumed or any(one.contract.get(kind) for kind in ("probe", "canary", "against")):
                continue
            if wish.kind == "supplement" or one.unfinished or not one.has_report:
                return folder
        raise NothingToGoOnError(
            FLAGS[wish.kind],
            LAST,
            f"no {'unfinished ' if wish.kind == 'resume' else ''}run of card {card} is in {runs}",
            "name a run's folder, or measure anew without the flag",
        )
    named = Path(wish.run)
    for folder in (runs / wish.run / card, named / card, named):
        if (folder / "contract.json").exists():
            return folder
    known = ", ".join(path.parent.name for path in sorted(runs.glob(f"*/{card}"))[-5:]) or "none"
    raise NothingToGoOnError(
        FLAGS[wish.kind],
        wish.run,
        f"no run of card {card} with a contract is there (last runs: {known})",
        f"name a session's id or a run's folder; {FLAGS[wish.kind]} at the end of the line takes the last one"
        if wish.kind == "resume"
        else "name a session's id or a run's folder",
    )


def read(folder: Path) -> Earlier:
    """What a run's folder holds, also after a kill. Raises InputError where its files are missing or damaged."""
    try:
        return _read(folder)
    except OSError as exc:
        reason = f"{exc.filename or 'a file of it'} cannot be read: {exc.strerror}"
        raise InputError("the earlier run", str(folder), reason, "make it readable, or name another run") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            "the earlier run", str(folder), "its contract or journal is damaged", "name another run, or measure anew"
        ) from None


def _read(folder: Path) -> Earlier:
    contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    _require_whole(contract)
    session, last_start = folder.parent.name, 0
    attempts: dict[str, list[Attempt]] = {}
    statuses: dict[str, tuple[str, tuple[str, ...]]] = {}
    searched: dict[str, int | None] = {}
    judged: set[str] = set()
    for event in read_lines(folder / "journal.jsonl"):
        if event["event"] == "session":
            session = event["session"]
        elif event["event"] == "server starting":
            last_start = max(last_start, event["start"])
        elif event["event"] == "attempt" and event["attempt"]["run"] > 0:
            one = attempt_from_json(event["attempt"])
            if "session" not in one.details:
                one = replace(one, details=one.details | {"session": session})
            last_start = max(last_start, one.server_start)
            attempts.setdefault(one.cell, []).append(one)
        elif event["event"] == "cell":
            statuses[event["cell"]] = (event["status"], tuple(event["reasons"]))
        elif event["event"] == "verdicts":
            judged.add(event["cell"])
        elif event["event"] == "search":
            searched[event["failed"]] = event["largest"]
    frozen = {cell: tuple(found) for cell, found in attempts.items()}
    return Earlier(folder, session, contract, frozen, statuses, last_start, searched, frozenset(judged))


def _require_whole(contract: Mapping[str, Any]) -> None:
    """Raise KeyError or TypeError where a contract lacks what is read of it later on."""
    for cell in contract["cells"]:
        str(cell["id"] + cell["part"])
    identity = contract["identity"]
    for section in (contract["request_fields"], identity["card"]["cells"], identity["machine"]):
        dict(section)


def attempt_from_json(data: Mapping[str, Any]) -> Attempt:
    """An attempt as the journal holds it."""
    figures = tuple(Figure(**(one | {"reasons": tuple(one["reasons"])})) for one in data["figures"])
    return Attempt(**(dict(data) | {"figures": figures, "request_ids": tuple(data["request_ids"])}))


def refuse_other(earlier: Earlier, terms: Mapping[str, Any], wish: Continue) -> None:
    """Raise InputError with every difference, unless card, engine, weights, sampling, rules and machine are the same."""
    if earlier.contract.get("probe"):
        raise InputError(FLAGS[wish.kind], earlier.session, "is a probe, never a measurement", "name another run")
    if earlier.contract.get("canary"):
        reason = "is a canary: its server was slowed on purpose"
        raise InputError(FLAGS[wish.kind], earlier.session, reason, "name another run")
    if earlier.contract.get("against"):
        raise InputError(
            FLAGS[wish.kind],
            earlier.session,
            "is a direct comparison (--llmbench-against): its pairs belong to one stretch of time",
            "measure it anew, or name another run",
        )
    old: dict[str, Any] = {name: earlier.contract.get(name) for name in _SAME}
    new: dict[str, Any] = json.loads(json.dumps({name: terms.get(name) for name in _SAME}))
    _keep_common(old["request_fields"], new["request_fields"])
    _keep_common(old["identity"]["card"]["cells"], new["identity"]["card"]["cells"])
    found = list(_differences(old, new))
    if found:
        more = [f"and {len(found) - LISTED} more"] if len(found) > LISTED else []
        listed = "\n    ".join([*found[:LISTED], *more])
        raise InputError(
            FLAGS[wish.kind],
            earlier.session,
            f"measured on another setup or machine; its numbers cannot stand beside new ones:\n    {listed}",
            "restore what it was measured with, or measure anew without the flag",
        )


def _keep_common(old: dict[str, Any], new: dict[str, Any]) -> None:
    """A cell that only one side has is no contradiction."""
    for side, other in ((old, new), (new, old)):
        for cell in [cell for cell in side if cell not in other]:
            del side[cell]


def _differences(old: Any, new: Any, path: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield f"{path}: then {json.dumps(old)}, now {json.dumps(new)}"


@dataclass(frozen=True, slots=True)
class Taken:
    """What the new run takes over. attempts: by cell; whole: cells that need nothing more, with their old status.

    searched: sizes that the finer search of ``fit`` tried, which nobody promised, likewise. replaced: cells whose earlier
    valid result gives way, for the stated reason.
    """

    attempts: Mapping[str, tuple[Attempt, ...]]
    whole: Mapping[str, tuple[str, tuple[str, ...]]]
    searched: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()


def choose(earlier: Earlier, promised: Sequence[CellSpec], wish: Continue, finished_run: Any) -> Taken:
    """Which results are taken over. promised: cells that this session selects; finished_run: (spec, attempts of a run) → bool.

    Resume: all that was concluded, whatever its status, and the finished runs of the rest; a finer search of ``fit`` that
    was cut short is something left, and so is the report of a run that was killed. Supplement: valid results, except of the parts that are replaced whole. Raises InputError where nothing is left to measure, or a part would be
    replaced in pieces.
    """
    theirs = {cell["id"] for cell in earlier.cells}
    concluded = {cell: said for cell, said in earlier.statuses.items() if cell in theirs}
    searched = {
        cell: said for cell, said in earlier.statuses.items() if cell not in theirs and size_of(cell) is not None
    }
    if wish.kind == "resume":
        whole = dict(concluded)
        attempts = {cell: earlier.of_cell(cell) for cell in whole}
        # Of cells that this session leaves out too: a later one goes on with them.
        for spec in {one.id: one for one in (*map(cell_from_json, earlier.cells), *promised)}.values():
            if spec.id not in whole and spec.id in earlier.attempts:
                attempts[spec.id] = _finished_runs(spec, earlier.attempts[spec.id], finished_run)
        left = [spec.id for spec in promised if spec.id not in whole or spec.id in earlier.unfinished]
        replaced: tuple[str, ...] = ()
    else:
        searched = {c: s for c, s in searched.items() if s[0] == "measured" and "fit" not in (wish.parts or ())}
        anew = [cell["id"] for cell in earlier.cells if cell["part"] in (wish.parts or ())]
        whole = {cell: said for cell, said in concluded.items() if said[0] == "measured" and cell not in anew}
        attempts = {cell: earlier.of_cell(cell) for cell in whole}
        left = [spec.id for spec in promised if spec.id not in whole]
        replaced = tuple(cell for cell in anew if earlier.statuses.get(cell, ("",))[0] == "measured")
        pieces = [cell for cell in anew if cell not in left]
        if replaced and pieces:
            raise InputError(
                FLAGS["supplement"],
                earlier.session,
                f"a part is replaced whole, and this session does not measure {', '.join(pieces)}",
                "select every cell of the part (no -k)",
            )
    if not left and (wish.kind == "supplement" or earlier.has_report):
        raise NothingLeftError(
            FLAGS[wish.kind],
            earlier.session,
            "nothing is left to measure in it",
            "name another run"
            if wish.kind == "resume"
            else "name the parts to replace with --llmbench-parts; a valid result is never replaced otherwise",
        )
    attempts |= {cell: earlier.attempts.get(cell, ()) for cell in searched}
    return Taken(attempts, whole, searched, replaced)


def _finished_runs(spec: CellSpec, attempts: Sequence[Attempt], finished_run: Any) -> tuple[Attempt, ...]:
    """The attempts of runs that were not cut short: a later run had begun, or the last attempt needs no other."""
    attempts = [one for one in attempts if not one.again]
    last = max(one.run for one in attempts)
    return tuple(one for one in attempts if one.run < last or finished_run(spec, attempts[-1]))


def copy_records(earlier: Earlier, attempts: Iterable[Attempt], folder: Path) -> None:
    """Copy raw records, texts and server logs of these attempts into the new run's folder."""
    wanted: dict[str, set[tuple[int, int, int]]] = {}
    others: set[str] = set()
    for one in attempts:
        wanted.setdefault(one.cell, set()).add((one.again, one.run, one.number))
        others |= {f"server-{one.server_start}.log", *one.details.get("texts", ())}
    for cell, keys in wanted.items():
        name = Journal.raw_file(cell)
        if (earlier.folder / name).exists():
            records = read_lines(earlier.folder / name)
            lines = [r for r in records if (r.get("again", 0), r["run"], r["attempt"]) in keys]
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")
    for place in earlier.folder.glob("control*"):  # what stood beside them, under its own session's name
        name = f"control-{earlier.session}" if place.name == "control" else place.name
        if place.is_dir():
            shutil.copytree(place, folder / name)
    for name in others:
        if (earlier.folder / name).exists():
            shutil.copyfile(earlier.folder / name, folder / name)
