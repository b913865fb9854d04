"""What makes figures comparable (GATE: "Baselines"), and in words what differs when they are not. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_llmbench.canonical import plain, sha256
from pytest_llmbench.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]


def common_card(identity: Mapping[str, Any]) -> Json:
    """The card's identity without its cells. identity: a contract's ``identity`` (card_id, card, machine)."""
    return {name: value for name, value in identity["card"].items() if name != "cells"}


def card_key(identity: Mapping[str, Any]) -> str:
    """Key of everything of the card but its cells."""
    return sha256(common_card(identity))


def cell_key(identity: Mapping[str, Any], cell: str) -> str:
    """Key of one cell: the card's identity with that cell's definition alone, so that it outlives a change of the others.

    Raises KeyError for a cell that the identity lacks.
    """
    return sha256(common_card(identity) | {"cells": {cell: identity["card"]["cells"][cell]}})


def cell_keys(identity: Mapping[str, Any]) -> dict[str, str]:
    """The keys of all cells of an identity, by cell id."""
    return {cell: cell_key(identity, cell) for cell in identity["card"]["cells"]}


def machine_key(identity: Mapping[str, Any]) -> str:
    """Key of the machine: host, CPU, GPUs with UUID and power limit."""
    return sha256(identity["machine"])


def machine_label(machine: Mapping[str, Any] | None) -> str:
    """A machine in few words: its GPUs or its CPU, and the start of its host id."""
    if not machine:
        return "unknown"
    gpus = [str(gpu[0]) for gpu in machine.get("gpus") or ()]
    names = " + ".join(f"{gpus.count(name)}x {name}" if gpus.count(name) > 1 else name for name in dict.fromkeys(gpus))
    return f"{names or machine.get('cpu') or 'unknown CPU'} ({str(machine.get('host_id'))[:6]})"


# ---- attributes: what is tested, not what is compared by -----------------------------------------------------------------

_SHORT_HASH = 12
# name as it is printed: where it stands in a document's environment
_ATTRIBUTES = {
    "engine": ("engine", "version"),
    "engine program": ("engine", "sha256"),
    "engine libraries": ("engine", "libraries_sha256"),
    "engine commit": ("engine", "commit"),
    "driver": ("machine", "driver"),
    "CUDA": ("machine", "cuda"),
    "kernel": ("machine", "kernel"),
    "operating system": ("machine", "os"),
    "CPU governor": ("machine", "governor"),
    "logical cores": ("machine", "cores_logical"),
    "memory MiB": ("machine", "memory_mib"),
    "virtualised": ("machine", "virtualised"),
    "pytest-llmbench": ("software", "pytest_llmbench"),
    "Python": ("software", "python"),
    "httpx": ("software", "httpx"),
}


def attributes(environment: Mapping[str, Any]) -> Json:
    """What may change between sessions that are compared: engine build, driver, kernel, tool. Unknown ones are left out.

    environment: a document's ``environment``.
    """
    found = {}
    for name, (section, field) in _ATTRIBUTES.items():
        value = (environment.get(section) or {}).get(field)
        if value is not None:
            found[name] = value
    return found


def changes(before: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between the attributes of a baseline's sessions and now, one line each: ``engine b12223 -> b12301``.

    An attribute whose value of now was there in some of those sessions too explains nothing, and is left out.
    """
    lines = {}
    for name in _ATTRIBUTES:
        old = list(dict.fromkeys(_short(name, one[name]) for one in before if name in one))
        new = _short(name, now[name]) if name in now else None
        if old and new is not None and new not in old:
            lines[name] = f"{name} {' or '.join(old)} -> {new}"
    if "engine" in lines:  # another version is another program: one line says it
        lines = {name: line for name, line in lines.items() if name not in _HASHES}
    return tuple(lines.values())


_HASHES = ("engine program", "engine libraries")


def _short(name: str, value: Any) -> str:
    return str(value)[:_SHORT_HASH] if name in _HASHES else str(value)


# ---- differences in words ------------------------------------------------------------------------------------------------


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two identities (``card`` and ``machine``), a line each, cells that both have included."""
    lines = list(_machine(old["machine"], new["machine"]))
    lines += _card(old["card"], new["card"])
    before, after = old["card"].get("cells", {}), new["card"].get("cells", {})
    for cell in sorted(before.keys() & after.keys()):
        lines += [f"{cell}: {line}" for line in _generic(before[cell], after[cell])]
    return lines


def capped(lines: Sequence[str], limit: int = 8) -> tuple[str, ...]:
    """The first lines, and how many more there are."""
    if len(lines) <= limit:
        return tuple(lines)
    return (*lines[: limit - 1], f"and {len(lines) - limit + 1} more differences")


def _machine(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old.get("host_id") != new.get("host_id"):
        yield f"another machine: host {old.get('host_id')}, this one is {new.get('host_id')}"
    if old.get("cpu") != new.get("cpu"):
        yield f"CPU: {old.get('cpu')} -> {new.get('cpu')}"
    before, after = list(map(_gpu, old.get("gpus") or ())), list(map(_gpu, new.get("gpus") or ()))
    if before != after:
        yield f"GPU: {', '.join(before) or 'none'} -> {', '.join(after) or 'none'}"
    rest = {"host_id", "cpu", "gpus"}
    yield from _generic(
        {k: v for k, v in old.items() if k not in rest}, {k: v for k, v in new.items() if k not in rest}
    )


def _gpu(gpu: Sequence[Any]) -> str:
    name, uuid, limit = (*gpu, None, None)[:3]
    facts = [str(uuid)] if uuid else []
    facts += [f"{limit:g} W"] if isinstance(limit, int | float) else []
    return f"{name} ({', '.join(facts)})" if facts else str(name)


def _card(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if plain(old.get("args")) != plain(new.get("args")):
        before, after = _flags(old.get("args") or ()), _flags(new.get("args") or ())
        gone = [flag for flag in before if flag not in after]
        come = [flag for flag in after if flag not in before]
        said = [f"was {' '.join(gone)}" if gone else "", f"is {' '.join(come)}" if come else ""]
        yield f"server arguments: {', '.join(word for word in said if word) or 'in another order'}"
    rest = {"args", "cells"}
    yield from _generic(
        {k: v for k, v in old.items() if k not in rest}, {k: v for k, v in new.items() if k not in rest}
    )


def _flags(args: Sequence[str]) -> list[str]:
    """Arguments as flag and values together, so that a changed value is shown with its flag."""
    groups: list[str] = []
    for word in args:
        is_flag = word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit()
        if is_flag or not groups:
            groups.append(word)
        else:
            groups[-1] += f" {word}"
    return groups


def _generic(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _generic(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif plain(old) != plain(new):
        yield f"{path}: {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    if value is None:
        return "not there"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    is_hash = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:_SHORT_HASH] if is_hash else shortened(text, 80)
