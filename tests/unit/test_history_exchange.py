"""The history as a whole: made again from the reports, exported and imported, and a card's baselines as a file."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from documents import ENVIRONMENT, IDENTITY, at, changed, document

from pytest_llmbench.errors import InputError
from pytest_llmbench.history import acceptance
from pytest_llmbench.history.exchange import Imported
from pytest_llmbench.history.file import BaselineFile
from pytest_llmbench.history.schema import METADATA
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DECODE = ("decode[code]", "decode_tok_s")


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with store._engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(table.select().order_by(*table.primary_key.columns))]
            for table in METADATA.sorted_tables
        }


def measure(store: Store, one: dict[str, Any]) -> None:
    """What a session does: write the report, record it."""
    folder = store.storage / "runs" / one["session"] / one["card"]["id"]
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(one), encoding="utf-8")
    store.record(one, folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cards, two machines, all kinds of sessions, two acceptances."""
    other = changed("card_id", "other", changed("machine.host_id", "there"))
    folder = tmp_path_factory.mktemp("made")
    with Store.open(folder) as one:
        for number in range(13):
            measure(one, document(number, decode=60.0 + number))
            if number % 3 == 0:
                measure(one, document(number, identity=other, minutes=60 * number + 1, ttft=None))
            if number == 6:
                one.accept("card", ["decode[code]"], why="a newer build", since="S0005", who="ann", when=at(370))
        measure(one, document(20, probe=True))
        broken = document(21, complete=False, problems=["did not start"])
        measure(one, broken | {"contract": {}})
        odd = document(22, continues={"kind": "resume", "session": "S0021"}, plan_changes={"runs": 2})
        odd["cells"][0] |= {"sessions": ["S0021"], "reasons": ["why"]}
        odd["cells"][0]["figures"][0] |= {"interval": [-0.1, 0.1], "again": [59.0], "dip": True, "clear": True}
        measure(one, odd)
        measure(one, document(23, environment=changed("engine.version", "b2", ENVIRONMENT)))
        one.accept("other", why="moved", who="bob", when=at(60 * 24))
        measure(one, document(25, identity=other))
    return folder


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Iterator[Store]:
    shutil.copytree(made, tmp_path / "one")
    with Store.open(tmp_path / "one") as one:
        yield one


# ---- rebuild ----


def test_a_rebuilt_index_equals_the_original(store: Store) -> None:
    before = tables(store)
    assert before["acceptances"]
    assert len(before["baselines"]) > 6
    done = store.rebuild()
    assert tables(store) == before
    assert (done.sessions, done.acceptances, done.kept) == (len(before["sessions"]), 2, 0)
    assert (done.found.probes, done.found.unfinished, done.found.skipped) == (1, 0, ())


def test_an_index_that_is_lost_is_made_from_the_files_alone(store: Store, tmp_path: Path) -> None:
    before = tables(store)
    shutil.copytree(tmp_path / "one" / "runs", tmp_path / "two" / "runs")
    shutil.copy(tmp_path / "one" / acceptance.FILE, tmp_path / "two")
    with Store.open(tmp_path / "two") as other:
        other.rebuild()
        assert tables(other) == before


def test_sessions_recorded_in_another_order_are_put_in_the_order_of_time(store: Store, tmp_path: Path) -> None:
    before = tables(store)
    runs = sorted((tmp_path / "one" / "runs").glob("*/*/report.json"), reverse=True)
    with Store.open(tmp_path / "one", tmp_path / "other.sqlite") as other:
        for path in runs:
            other.record(json.loads(path.read_text(encoding="utf-8")), path.parent)
        assert tables(other)["members"] != before["members"]
        other.rebuild()
        assert tables(other) == before


def test_a_session_whose_report_is_gone_is_kept(store: Store, tmp_path: Path) -> None:
    before = tables(store)
    shutil.rmtree(tmp_path / "one" / "runs" / "S0003")
    (tmp_path / "one" / acceptance.FILE).unlink()
    done = store.rebuild()
    assert done.kept == 2
    assert tables(store) == before


def test_what_cannot_be_read_is_named_and_skipped(store: Store, tmp_path: Path) -> None:
    runs = tmp_path / "one" / "runs"
    with Store.open(tmp_path / "one", tmp_path / "new.sqlite") as other:
        (runs / "S0001/card/report.json").write_text('{"llmbench_report": 1, "sess', encoding="utf-8")
        (runs / "S0002/card/report.json").write_text("[]", encoding="utf-8")
        (runs / "S0004/card/report.json").write_bytes(b"\xff\xfe\x00")
        (runs / "S0005/card/report.json").write_text('{"llmbench_report": 9}', encoding="utf-8")
        (runs / "S0007/card/report.json").unlink()
        with (tmp_path / "one" / acceptance.FILE).open("a") as file:
            file.write('{"llmbench_acceptance": 1, "card_id": "card"}\nrubbish\n')
        done = other.rebuild()
        names = {row.session for row in other.sessions(100)}
    reasons = {name.removeprefix(f"{tmp_path}/one/"): reason for name, reason in done.found.skipped}
    assert set(reasons) == {
        *(f"runs/S000{n}/card/report.json" for n in (1, 2, 4, 5)),
        "acceptances.jsonl:3",
        "acceptances.jsonl:4",
    }
    assert "Unterminated string" in reasons["runs/S0001/card/report.json"]
    assert "has format 9" in reasons["runs/S0005/card/report.json"]
    assert reasons["acceptances.jsonl:3"] == "cells: Field required"
    assert done.found.unfinished == 1
    assert not names & {"S0001", "S0002", "S0004", "S0005", "S0007"}
    assert {"S0000", "S0003", "S0006"} <= names


def test_a_rebuild_that_fails_leaves_the_old_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables(store)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_llmbench.history.write.accept", fail)
    with pytest.raises(InputError, match="No space left"):
        store.rebuild()
    assert tables(store) == before


# ---- export and import ----


def test_an_import_of_an_export_is_the_same_history(store: Store, tmp_path: Path) -> None:
    count = store.export_to(tmp_path / "h.jsonl")
    lines = (tmp_path / "h.jsonl").read_text(encoding="utf-8").splitlines()
    assert count == len(lines)
    assert json.loads(lines[0])["llmbench_history"] == 1
    with Store.open(tmp_path / "two") as other:
        sessions = len(tables(store)["sessions"])
        assert other.import_from(tmp_path / "h.jsonl") == Imported(sessions, 2, 0)
        assert tables(other) == tables(store)
        assert (tmp_path / "two" / acceptance.FILE).read_text() == (tmp_path / "one" / acceptance.FILE).read_text()
        assert other.import_from(tmp_path / "h.jsonl") == Imported(0, 0, sessions + 2)
        assert tables(other) == tables(store)
        other.export_to(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "h.jsonl").read_text()


def test_more_sessions_than_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmbench.history.exchange._BATCH", 4)
    with Store.open(tmp_path / "one") as one, Store.open(tmp_path / "two") as two:
        for number in range(8):
            one.record(document(number), "x")
            if number in {3, 7}:
                one.accept("card", why="so", when=at(60 * number + 5))
        one.export_to(tmp_path / "h.jsonl")
        assert two.import_from(tmp_path / "h.jsonl") == Imported(8, 2, 0)
        assert tables(one) == tables(two)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "is empty"),
        (lambda lines: lines[1:], "not an export of a history"),
        (lambda lines: ['{"llmbench_history": 7}', *lines[1:]], "has format 7, this version reads 1"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "line {last}: "),
        (lambda lines: [*lines, '{"kind": "joke"}'], "unknown kind 'joke'"),
        (lambda lines: [*lines, "[]"], "line {after}: "),
        (lambda lines: [line.replace("RTX 3090", "RTX 4090") for line in lines], "the machine was changed"),
        (lambda lines: [line for line in lines if '"kind": "cell"' not in line], "no '"),
        (lambda lines: [line.replace('"complete": true', '"complete": "so-so"') for line in lines], "complete: "),
    ],
)
def test_a_file_that_is_no_export_changes_nothing(store: Store, tmp_path: Path, change: Any, reason: str) -> None:
    store.export_to(tmp_path / "h.jsonl")
    lines = (tmp_path / "h.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "h.jsonl").write_text("\n".join(change(lines)), encoding="utf-8")
    with Store.open(tmp_path / "two") as other:
        with pytest.raises(InputError, match=r"h\.jsonl") as caught:
            other.import_from(tmp_path / "h.jsonl")
        assert reason.format(last=len(lines), after=len(lines) + 1) in str(caught.value)
        assert other.sessions() == []


def test_a_file_that_is_not_there(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.jsonl.*: No such file"):
        store.import_from(tmp_path / "no.jsonl")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="name another place"):
        store.export_to(tmp_path / "file" / "h.jsonl")


# ---- a file to commit ----


def test_a_baseline_file_answers_as_the_store(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "card.json"
    store.baseline_file(IDENTITY).save(path)
    file = BaselineFile.load(path)
    assert file.baselines_of(IDENTITY) == store.baselines_of(IDENTITY)
    assert file.baselines_of(IDENTITY)[DECODE].accepted == "a newer build"
    now = changed("engine.version", "b9", ENVIRONMENT)
    assert file.changed_since(IDENTITY, *DECODE, now) == store.changed_since(IDENTITY, *DECODE, now)
    assert file.changed_since(IDENTITY, *DECODE, now) != ()
    assert file.other_machines(IDENTITY) == ()
    file.refuse_other(IDENTITY, path)
    file.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_one_more_session_is_a_small_difference(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for number in range(5):
            store.record(document(number, decode=60.0 + number), "x")
        store.baseline_file(IDENTITY).save(tmp_path / "before.json")
        store.record(document(5), "x")
        store.baseline_file(IDENTITY).save(tmp_path / "after.json")
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("before.json", "after.json"))
    new = [line for line in after if line not in before]
    assert sum("S0005" in line for line in new) == 4  # three figures, and the session's own facts
    assert all("S0005" in line or "started" in line or "sigma0" in line or "S0004" in line for line in new)


def test_a_baseline_file_is_refused_elsewhere(store: Store, tmp_path: Path) -> None:
    file, path = store.baseline_file(IDENTITY), tmp_path / "b.json"
    there = changed("machine.host_id", "there", changed("card.sampling.temperature", 1.0))
    assert file.baselines_of(there) == {}
    with pytest.raises(
        InputError, match=r"host here, this one is there\n    sampling.temperature: 0.5 -> 1.0"
    ) as caught:
        file.refuse_other(there, path)
    assert str(path) in str(caught.value)
    other = changed("card.cells.decode[code].max_tokens", 128)
    with pytest.raises(InputError, match=r"decode\[code\]: max_tokens: 512 -> 128"):
        file.refuse_other(other, path)
    fewer = changed("card.cells", {"decode[code]": IDENTITY["card"]["cells"]["decode[code]"]})
    file.refuse_other(fewer, path)
    assert {cell for cell, _ in file.baselines_of(fewer)} == {"decode[code]"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: "", "Expecting value"),
        (lambda text: "[]", "not a file of baselines"),
        (lambda text: text.replace('"llmbench_baselines": 1', '"llmbench_baselines": 2'), "has format 2"),
        (lambda text: text.replace('"S0005": {', '"S9999": {'), "session S0005 is not among the sessions"),
        (lambda text: text.replace(": 65.0", ": -65.0"), "the value of session S0005 is not above 0"),
        (lambda text: text.replace('"pinned"', '"pined"'), "pinned: Field required"),
    ],
)
def test_a_damaged_baseline_file_is_named(store: Store, tmp_path: Path, change: Any, reason: str) -> None:
    path = tmp_path / "b.json"
    store.baseline_file(IDENTITY).save(path)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError, match=r"baseline file = .*b\.json") as caught:
        BaselineFile.load(path)
    assert reason in str(caught.value)
