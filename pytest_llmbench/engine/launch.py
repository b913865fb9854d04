"""From a LaunchSpec to the command that is run: the files, the caller's changes and the observer's needs in place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.engine.command import Arguments
from pytest_llmbench.engine.ports import LOOPBACK
from pytest_llmbench.engine.version import help_text
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_llmbench.engine import LaunchSpec

_CONTAINER_CLIENTS = frozenset({"docker", "podman", "nerdctl"})
_TRACE_LEVEL = re.compile(r"^\s*-\s*4:\s*trace", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command ready to run.

    changes: what we changed in the card's command, in words. unset: names of the caller's environment that must not reach
    the server. headers: what a request needs (an API key); never shown.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    unset: tuple[str, ...]
    changes: tuple[str, ...]
    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    in_container: bool


def prepare(spec: LaunchSpec, port: int) -> Launch:
    """The command of a start: the card's arguments with the files, the caller's changes and the observer's needs in place.

    Raises InputError for arguments that cannot be measured through (TLS).
    """
    args = Arguments(spec.args)
    for flag in ("--ssl-key-file", "--ssl-cert-file"):
        if args.has(flag):
            raise InputError(
                "server.args", flag, "a server behind TLS cannot be measured", "remove the flag from the card"
            )
    in_container = is_container(spec.wrapper)
    editor = _Editor(args)
    editor.files(spec)
    for flag, value in spec.changes:
        editor.args = editor.args.set(flag, value or None)
    if in_container:
        port = _container_port(spec, editor.args)
        editor.changes.append("host and port left as the card has them: the server runs in a container")
    else:
        editor.observe("--host", LOOPBACK)
        editor.observe("--port", str(port))
    if not editor.args.has("--metrics"):
        editor.args = editor.args.set("--metrics")
        editor.changes.append("added --metrics")
    editor.logging(trace=not in_container and _knows_trace(spec.binary, spec.env))
    # The card is the one truth: settings of llama-server that happen to be in the caller's environment are left out.
    own = {name for name, _ in spec.env}
    unset = tuple(sorted(name for name in os.environ if name.startswith("LLAMA_ARG_") and name not in own))
    editor.changes += [f"{name} of the caller's environment left out" for name in unset]
    return Launch(
        argv=(*spec.wrapper, spec.binary, *editor.args.tokens),
        env=spec.env,
        unset=unset,
        changes=tuple(editor.changes),
        base_url=f"http://{LOOPBACK}:{port}{(editor.args.get('--api-prefix') or '').rstrip('/')}",
        headers=_headers(editor.args, dict(spec.env)),
        in_container=in_container,
    )


class _Editor:
    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.changes: list[str] = []

    def observe(self, flag: str, value: str) -> None:
        """Put a value in place and say so, unless it is there already."""
        old = self.args.get(flag)
        if old == value:
            return
        self.changes.append(f"{flag} {old} -> {value}" if old is not None else f"added {flag} {value}")
        self.args = self.args.set(flag, value)

    def files(self, spec: LaunchSpec) -> None:
        for flag in ("-hf", "-hff", "-mu", "-dr"):
            # The file is here already; left in, these would download another one.
            if self.args.has(flag):
                self.changes.append(f"{flag} {self.args.get(flag)} replaced by the file itself")
                self.args = self.args.remove(flag)
        self.observe("-m", spec.model_path)
        if spec.draft_path is not None:
            self.args = self.args.remove("-hfd")
            self.observe("-md", spec.draft_path)

    def logging(self, *, trace: bool) -> None:
        """Buffer sizes and draft acceptance are logged at level 4 where that is "trace"; elsewhere 4 would flood."""
        if self.args.has("--log-disable"):
            self.args = self.args.remove("--log-disable")
            self.changes.append("removed --log-disable")
        if not trace or self.args.has("-v"):
            return
        level = self.args.get("-lv")
        if level is None or (level.lstrip("-").isdigit() and int(level) < 4):
            self.observe("-lv", "4")


@lru_cache(maxsize=8)
def _knows_trace(binary: str, env: tuple[tuple[str, str], ...]) -> bool:
    try:
        return _TRACE_LEVEL.search(help_text(binary, env=dict(env))) is not None
    except InputError:
        return False  # the start itself will say what is wrong with the binary


def _headers(args: Arguments, env: Mapping[str, str]) -> dict[str, str]:
    """The key that the server will ask for: --api-key, --api-key-file, or LLAMA_API_KEY."""
    keys = (args.get("--api-key") or "").split(",")
    key_file = args.get("--api-key-file")
    if key_file:
        try:
            keys += [
                line for line in Path(key_file).read_text(encoding="utf-8").splitlines() if not line.startswith("#")
            ]
        except OSError as error:
            raise InputError(
                "server.args --api-key-file", key_file, error.strerror or str(error), "give a readable file"
            ) from None
    keys += (env.get("LLAMA_API_KEY") or os.environ.get("LLAMA_API_KEY") or "").split(",")
    first = next((key.strip() for key in keys if key.strip()), None)
    return {"Authorization": f"Bearer {first}"} if first else {}


def is_container(wrapper: tuple[str, ...]) -> bool:
    return any(Path(word).name in _CONTAINER_CLIENTS for word in wrapper)


def _container_port(spec: LaunchSpec, args: Arguments) -> int:
    """The port on this side of a container: as published, else the server's own (host network)."""
    for flag in ("-p", "--publish"):
        published = Arguments(spec.wrapper).get(flag)
        if published is not None and published.count(":") >= 1:
            return int(published.split(":")[-2])
    return int(args.get("--port") or 8080)
