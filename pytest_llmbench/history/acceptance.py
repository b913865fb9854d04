"""Acceptances of a new reference: who, when, why, and a file beside the store that people can review."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_llmbench import canonical
from pytest_llmbench.history.entry import why

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "acceptances.jsonl"


class Acceptance(BaseModel):
    """From this session on, what is measured is what is expected. cells: the key of each cell, by its id.

    since: the first session of the new baselines; since_started: when it started, for the day when it is gone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    card_id: str
    cells: dict[str, str] = Field(min_length=1)
    machine: dict[str, object]
    who: str
    when: str
    why: str = Field(min_length=1)
    since: str
    since_started: str

    @property
    def key(self) -> str:
        return canonical.sha256(self.model_dump(mode="json"))

    def line(self) -> str:
        return json.dumps({"llmbench_acceptance": 1, **self.model_dump(mode="json")}, ensure_ascii=False) + "\n"


def append(storage: Path, acceptance: Acceptance) -> None:
    """Add a line to the file; on the disk when this returns."""
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / FILE).open("a", encoding="utf-8") as file:
        file.write(acceptance.line())
        file.flush()
        os.fsync(file.fileno())


def read(storage: Path) -> Iterator[tuple[int, Acceptance | str]]:
    """The file's acceptances with their line numbers; a line that cannot be read gives the reason in its place."""
    path = storage / FILE
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.strip():
            yield number, parse(line)


def parse(line: str) -> Acceptance | str:
    """An acceptance, or why the line is none."""
    try:
        content = json.loads(line)
        if content.pop("llmbench_acceptance", None) != 1:
            return "not an acceptance of format 1"
        return Acceptance.model_validate(content)
    except (ValidationError, ValueError, AttributeError) as exc:
        return why(exc)
