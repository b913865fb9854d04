"""How the machine is watched: the card's ``watch`` section as the watch's own rooms and its helper process see it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Ignored:
    """A process that disturbs no run. process: its name or a shell pattern of it; reason: why, for the record."""

    process: str
    reason: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of the watch (METHOD, "The machine under the test").

    limit_share: of one core; consecutive: samples in a row above it that make a run disturbed; interval_s, quiet_interval_s:
    seconds between samples. throttle_share: of a run's samples with thermal or hardware slowdown, above which it is
    disturbed; power_cap_share: the same for a GPU at its power limit, None: shown only.
    """

    guard: bool = True
    limit_share: float = 0.25
    interval_s: float = 0.5
    consecutive: int = 2
    ignore: tuple[Ignored, ...] = ()
    quiet_interval_s: float = 10.0
    throttle_share: float = 0.25
    power_cap_share: float | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Settings:
        """From the card's section as plain data. Raises TypeError for a key that is not there."""
        plain = dict(section)
        plain["ignore"] = tuple(Ignored(**entry) for entry in plain.get("ignore") or ())
        return cls(**plain)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def ignored(self, *names: str) -> str | None:
        """The reason why a process of one of these names is ignored, or None."""
        for entry in self.ignore:
            if any(fnmatchcase(name, entry.process) for name in names):
                return entry.reason
        return None
