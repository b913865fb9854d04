"""The run's folder: an append-only journal and the raw records. Readable after SIGKILL; nothing is ever rewritten.

``journal.jsonl``: one event a line (``event``, ``wall``, ``t_ns`` and the event's own keys). ``raw/<cell>.jsonl``: one
record a request. A line goes out in one ``write`` to a file opened with O_APPEND, so a kill leaves at most one
unfinished last line, which readers skip.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_llmbench.records import RequestTrace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Journal:
    """Writer of one run's folder; creates it. Raises FileExistsError when the folder already holds a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._raw: dict[str, int] = {}
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        self._fd = os.open(folder / "journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o644)

    def event(self, name: str, **facts: Any) -> None:
        """Append one event. Values may be records (dataclasses); what JSON cannot hold raises TypeError."""
        stamp = {
            "event": name,
            "wall": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "t_ns": time.monotonic_ns(),
        }
        _append(self._fd, stamp | {key: plain(value) for key, value in facts.items()})

    def request(self, cell: str, trace: RequestTrace, **facts: Any) -> None:
        """Append one request to the cell's raw file."""
        if cell not in self._raw:
            path = self.folder / self.raw_file(cell)
            self._raw[cell] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _append(self._raw[cell], {key: plain(value) for key, value in facts.items()} | trace_to_json(trace))

    def text(self, name: str, text: str) -> str:
        """Keep an answer's text beside the raw records; returns the file, relative to the run's folder."""
        file = f"{self.raw_file(name).removesuffix('.jsonl')}.txt"
        (self.folder / file).write_text(text, encoding="utf-8")
        return file

    def sync(self) -> None:
        """Force what was written to the disk (after each attempt: a power cut loses no finished run)."""
        for fd in (self._fd, *self._raw.values()):
            os.fsync(fd)

    @staticmethod
    def raw_file(cell: str) -> str:
        """The cell's raw file, relative to the run's folder."""
        return f"raw/{re.sub(r'[^A-Za-z0-9.]+', '-', cell).strip('-')}.jsonl"

    def close(self) -> None:
        for fd in (self._fd, *self._raw.values()):
            os.close(fd)
        self._raw.clear()


def _append(fd: int, record: dict[str, Any]) -> None:
    line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    while line:  # a short write happens on a full disk only; the next one raises and says so
        line = line[os.write(fd, line) :]


def plain(value: Any) -> Any:
    """Records, paths and tuples as JSON holds them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {k: plain(v) for k, v in asdict(value).items()}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal or raw file; an unfinished last line (the writer was killed) is skipped."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def trace_to_json(trace: RequestTrace) -> dict[str, Any]:
    """A trace as JSON. Arrivals are ns after t_call; the prompt's text is replaced by its hash and size.

    A chunk is text where it is valid UTF-8 by itself, else ``{"b64": …}``.
    """
    return {
        "request_id": trace.request_id,
        "path": trace.path,
        "wall": trace.wall,
        "t_call_ns": trace.t_call_ns,
        "t_send_ns": trace.t_send_ns,
        "t_headers_ns": trace.t_headers_ns,
        "t_end_ns": trace.t_end_ns,
        "status": trace.status,
        "headers": [list(pair) for pair in trace.headers],
        "transport_error": trace.transport_error,
        "body": _body_without_text(trace.body),
        "body_sha256": hashlib.sha256(trace.body).hexdigest(),
        "chunks": [[t - trace.t_call_ns, _chunk_to_json(data)] for t, data in trace.chunks],
    }


def trace_from_json(record: dict[str, Any]) -> RequestTrace:
    """The trace again, as far as figures need it: everything but the prompt's text."""
    t_call = record["t_call_ns"]
    return RequestTrace(
        request_id=record["request_id"],
        path=record["path"],
        body=json.dumps(record["body"]).encode(),
        wall=record["wall"],
        t_call_ns=t_call,
        t_send_ns=record["t_send_ns"],
        t_headers_ns=record["t_headers_ns"],
        t_end_ns=record["t_end_ns"],
        status=record["status"],
        headers=tuple((k, v) for k, v in record["headers"]),
        chunks=tuple((t_call + t, _chunk_from_json(data)) for t, data in record["chunks"]),
        transport_error=record["transport_error"],
    )


def _chunk_to_json(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode()}


def _chunk_from_json(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


def _body_without_text(body: bytes) -> Any:
    """The request as sent, each message's text replaced by its hash and length (the prompt can be built again)."""
    try:
        sent = json.loads(body)
    except ValueError:
        return {"bytes": len(body)}
    for message in sent.get("messages", ()) if isinstance(sent, dict) else ():
        text = message.get("content")
        if isinstance(text, str):
            message["content"] = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "characters": len(text)}
    return sent
