"""Journal, raw records and files: what a kill, a full name or a NaN can do to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cells import good
from traces import DONE, MS, SEND, delta, steady, trace

from pytest_llmbench import files
from pytest_llmbench.client.parse import parse
from pytest_llmbench.journal import Journal, plain, read_lines, trace_from_json, trace_to_json

REPOSITORY = Path(__file__).parents[2]

# ---- journal ----------------------------------------------------------------------------------------------------------


def test_events_come_back_in_order_with_their_stamps(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.event("first", path=tmp_path, pair=(1, 2), nothing=None)
    journal.event("attempt", attempt=good(1, 60.0))
    journal.close()
    first, second = read_lines(tmp_path / "journal.jsonl")
    assert first.pop("t_ns") <= second["t_ns"]
    assert first.pop("wall") <= second["wall"]
    assert first == {"event": "first", "path": str(tmp_path), "pair": [1, 2], "nothing": None}
    assert second["attempt"]["figures"][0]["value"] == 60.0


def test_a_second_journal_never_overwrites_the_first(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with pytest.raises(FileExistsError):
        Journal(tmp_path)


@pytest.mark.parametrize("tail", [b'{"event":"half', b'{"event":"whole but for the newline"}', b"\xff\xfe"])
def test_an_unfinished_last_line_is_skipped(tmp_path: Path, tail: bytes) -> None:
    journal = Journal(tmp_path)
    journal.event("one")
    journal.event("two")
    journal.close()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(tail)
    assert [line["event"] for line in read_lines(tmp_path / "journal.jsonl")] == ["one", "two"]


def test_a_broken_line_in_the_middle_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"one"}\nnonsense\n{"event":"two"}\n')
    with pytest.raises(json.JSONDecodeError):
        list(read_lines(path))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_is_never_written(tmp_path: Path, value: float) -> None:
    journal = Journal(tmp_path)
    journal.event("before")
    with pytest.raises(ValueError, match="Out of range float"):
        journal.event("figure", value=value)
    with pytest.raises(ValueError, match="Out of range float"):
        journal.request("decode[code]", steady(3), value=value)
    journal.event("after")
    journal.close()
    assert [line["event"] for line in read_lines(tmp_path / "journal.jsonl")] == ["before", "after"]
    assert list(read_lines(tmp_path / "raw" / "decode-code.jsonl")) == []


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(TypeError):
        journal.event("odd", value=object())
    journal.close()


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("decode[code]", "raw/decode-code.jsonl"),
        ("ctx[32768-prose]", "raw/ctx-32768-prose.jsonl"),
        ("long_answer", "raw/long-answer.jsonl"),
        ("../../etc/passwd", "raw/..-..-etc-passwd.jsonl"),
        ("a/b\\c d\n", "raw/a-b-c-d.jsonl"),
    ],
)
def test_raw_files_are_named_by_their_cell_and_stay_in_the_folder(cell: str, name: str) -> None:
    assert Journal.raw_file(cell) == name
    assert len(Path(name).parts) == 2


def test_cells_do_not_share_a_raw_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.request("decode[code]", steady(3), run=1)
    journal.request("decode[prose]", steady(3), run=1)
    journal.request("decode[code]", steady(3), run=2)
    journal.sync()
    journal.close()
    assert [line["run"] for line in read_lines(tmp_path / "raw" / "decode-code.jsonl")] == [1, 2]
    assert [line["run"] for line in read_lines(tmp_path / "raw" / "decode-prose.jsonl")] == [1]


def test_a_killed_writer_leaves_every_line_that_it_finished(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from pytest_llmbench.journal import Journal\n"
        f"journal = Journal(pathlib.Path({str(tmp_path)!r}))\n"
        "for number in range(10**9):\n"
        "    journal.event('n', number=number, padding='x' * 5000)\n"
        "    print(number, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(50)][-1]
        process.send_signal(signal.SIGKILL)
    numbers = [line["number"] for line in read_lines(tmp_path / "journal.jsonl")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > told


# ---- raw records ------------------------------------------------------------------------------------------------------


def test_a_trace_comes_back_so_that_every_figure_does() -> None:
    one = steady(300)
    again = trace_from_json(json.loads(json.dumps(trace_to_json(one))))
    assert parse(again) == parse(one)
    assert replace(again, body=b"") == replace(one, body=b"")


def test_bytes_that_are_no_text_come_back() -> None:
    whole = delta("€").decode().encode().replace(b"\\u20ac", "€".encode())
    at = whole.index("€".encode()) + 1  # a chunk that ends inside a character
    one = trace([(1.0, whole[:at]), (2.0, whole[at:]), (3.0, DONE)])
    again = trace_from_json(json.loads(json.dumps(trace_to_json(one))))
    assert again.chunks == one.chunks
    assert parse(again).content == "€"
    assert parse(again).events[0].t_ns == SEND + 2 * MS


def test_the_prompt_is_kept_as_hash_and_size_only() -> None:
    record = trace_to_json(steady(3))
    assert "secret prompt" not in json.dumps(record)
    (message,) = record["body"]["messages"]
    assert message["content"]["characters"] == len("secret prompt")
    assert record["body"]["seed"] == 42


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"\x00\xff", {"bytes": 2}),
        (b"[1]", [1]),
        (b"", {"bytes": 0}),
        (b'{"messages": [{"content": [{"type": "text"}]}]}', {"messages": [{"content": [{"type": "text"}]}]}),
    ],
)
def test_other_bodies(body: bytes, kept: Any) -> None:
    assert trace_to_json(replace(steady(3), body=body))["body"] == kept


def test_a_request_that_never_left_is_kept_too() -> None:
    one = replace(trace([], status=None, error="ConnectError: refused"), t_send_ns=None, t_headers_ns=None)
    assert parse(trace_from_json(trace_to_json(one))).error == "ConnectError: refused"


def test_plain_takes_records_apart() -> None:
    assert plain({1: (Path("a") / "b", [good(1, 60.0).request_ids])}) == {"1": ["a/b", [["decode[code]/1/1/0"]]]}


# ---- files ------------------------------------------------------------------------------------------------------------


def test_json_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    files.write_json(path, {"a": "ä", "n": None})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ä", "n": None}
    assert "ä" in path.read_text(encoding="utf-8")
    assert path.read_text().endswith("}\n")
    for broken in ({"value": float("nan")}, {"value": float("inf")}, {"value": object()}):
        with pytest.raises((ValueError, TypeError)):
            files.write_json(path, broken)
        assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ä", "n": None}


def test_a_failed_write_leaves_no_scraps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(tmp_path / "report.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    code = (
        "import pathlib\n"
        "from pytest_llmbench.files import write_json\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "for number in range(10**9):\n"
        "    write_json(path, [number] * 20000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        try:
            seen: set[int] = set()
            while len(seen) < 3:
                if path.exists():
                    content = json.loads(path.read_text())
                    assert len(content) == 20000
                    assert len(set(content)) == 1
                    seen.add(content[0])
        finally:
            process.kill()


def test_a_full_disk_leaves_the_old_file_and_no_scraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    files.write_json(tmp_path / "report.json", {"old": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(tmp_path / "report.json", {"new": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert json.loads((tmp_path / "report.json").read_text()) == {"old": 1}


def test_text_replaces_text(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a" / "table.md", "old")
    files.write_text(tmp_path / "a" / "table.md", "new")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["table.md"]
    assert (tmp_path / "a" / "table.md").read_text() == "new"
