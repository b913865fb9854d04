"""The truth log: what left when, one JSON line a request, written while nothing is being timed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

ChunkKind = Literal["role", "content", "reasoning", "tool", "finish", "usage", "done", "comment", "error", "body"]


@dataclass(frozen=True, slots=True)
class TruthChunk:
    """One event as written. tokens: how many generated tokens it brings; times are monotonic ns."""

    kind: ChunkKind
    tokens: int
    scheduled_ns: int
    actual_ns: int


@dataclass(slots=True)
class TruthRecord:
    """One generating request. Times are ``time.monotonic_ns()``; None where it never happened.

    id: the ``x-request-id`` header. number: from 1 in order of arrival. end: ``done``, ``refused``, ``error``,
    ``drop``, ``end``, ``hang``, ``exit``, ``cancelled`` (the client went away) or ``shutdown``.
    """

    id: str | None
    number: int
    path: str
    stream: bool
    t_received_ns: int
    t_slot_ns: int | None = None
    t_headers_ns: int | None = None
    t_end_ns: int | None = None
    prompt_tokens: int = 0
    cache_n: int = 0
    predicted_n: int = 0
    end: str = "open"
    chunks: list[TruthChunk] = field(default_factory=list)

    @property
    def text_chunks(self) -> list[TruthChunk]:
        """The chunks that carry generated tokens."""
        return [chunk for chunk in self.chunks if chunk.kind in ("content", "reasoning", "tool", "body")]

    @property
    def ttft_ms(self) -> float | None:
        """First generated text written minus request received, in ms."""
        texts = self.text_chunks
        return (texts[0].actual_ns - self.t_received_ns) / 1e6 if texts else None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens after the first chunk / (last chunk - first chunk), as METHOD defines decode, on the true send times."""
        texts = self.text_chunks
        if len(texts) < 2 or texts[-1].actual_ns == texts[0].actual_ns:
            return None
        return sum(c.tokens for c in texts[1:]) / ((texts[-1].actual_ns - texts[0].actual_ns) / 1e9)

    @property
    def lateness_ms(self) -> float:
        """The largest actual minus scheduled, in ms."""
        return max((chunk.actual_ns - chunk.scheduled_ns for chunk in self.chunks), default=0) / 1e6


class TruthLog:
    """Collects records and appends them to a file when the server is idle, or after two seconds at the latest."""

    def __init__(self, path: str | None, idle: Callable[[], bool]) -> None:
        self._path = Path(path) if path else None
        self._idle = idle
        self._waiting: list[TruthRecord] = []
        self._oldest_ns = 0

    def add(self, record: TruthRecord) -> None:
        if self._path is None:
            return
        if not self._waiting:
            self._oldest_ns = time.monotonic_ns()
        self._waiting.append(record)

    def flush_if_due(self) -> None:
        if self._waiting and (self._idle() or time.monotonic_ns() - self._oldest_ns > 2_000_000_000):
            self.flush()

    def flush(self) -> None:
        if self._path is None or not self._waiting:
            return
        lines = "".join(json.dumps(_packed(record)) + "\n" for record in self._waiting)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)
        self._waiting.clear()


def _packed(record: TruthRecord) -> dict[str, Any]:
    data = asdict(record)
    data["chunks"] = [[c.kind, c.tokens, c.scheduled_ns, c.actual_ns] for c in record.chunks]
    return data


def read_truth(path: Path) -> list[TruthRecord]:
    """The records of a truth log, in order of their end; a line that is still being written is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        data = json.loads(line)
        data["chunks"] = [TruthChunk(*chunk) for chunk in data["chunks"]]
        records.append(TruthRecord(**data))
    return records
