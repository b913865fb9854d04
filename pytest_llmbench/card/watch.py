"""The section ``watch``: how the machine is watched while runs are measured, and what may work beside them."""

from typing import Annotated

from pydantic import Field

from pytest_llmbench.card.base import CardModel, Positive, PositiveNumber, Text

Share = Annotated[float, Field(gt=0, le=1)]


class Ignore(CardModel):
    """A process that disturbs no run; it is reported all the same, marked."""

    process: Text
    """The program's name, or a shell pattern of it (``indexer*``). An interpreter's is ``python (script.py)``."""
    reason: Text
    """Why its work does not count."""


class Watch(CardModel):
    """Bounds of the load guard, the quiet check and the GPU's throttling."""

    guard: bool = True
    """false: samples are taken and reported, and no run is repeated for them."""
    limit_share: PositiveNumber = 0.25
    """Of one core: foreign work above it …"""
    consecutive: Positive = 2
    """… in so many samples in a row makes a run disturbed."""
    interval_s: Annotated[float, Field(ge=0.1, le=10)] = 0.5
    """Seconds between samples."""
    ignore: tuple[Ignore, ...] = ()
    quiet_interval_s: Annotated[float, Field(ge=1)] = 10.0
    """Seconds between records of the quiet check, which ignores nobody and repeats nothing."""
    throttle_share: Share = 0.25
    """Of a run's samples with thermal or hardware slowdown of a GPU, above which the run is disturbed."""
    power_cap_share: Share | None = None
    """The same for a GPU held at its power limit; null: shown only, since most GPUs run there by design."""
