"""The sections ``server``, ``sampling`` and ``thinking``: how the server is started and what every request carries."""

import copy
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, Self, cast

from pydantic import Field, JsonValue, model_validator

from pytest_llmbench.card import arguments, secret
from pytest_llmbench.card.base import EnvName, Fault, FrozenMap, Scalar, Stated, Text, refuse
from pytest_llmbench.card.parts import PartName

# What the tool itself sets in every request; a card that set it too would state one thing twice.
_OURS = {
    "seed": 'write it as "seed" beside "values"',
    "ignore_eos": 'write it in the part: "plan": {"decode": {"ignore_eos": true}}',
    "max_tokens": 'write it in the part: "plan": {"decode": {"max_tokens": 512}}',
    "max_completion_tokens": "write max_tokens in the part of the plan",
    "n_predict": "write max_tokens in the part of the plan",
    "cache_prompt": "remove it: every request is sent with cache_prompt false",
    "stream": "remove it: every answer is streamed",
    "n": "remove it: one answer a request, or its tokens cannot be told apart",
    "messages": "remove it: prompts come from the plan",
    "model": "remove it: the server is asked",
}


# What llama-server's API takes (an unknown name is ignored there without a word, so a near miss is refused here).
_SAMPLING = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p",
    "xtc_probability", "xtc_threshold", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat",
    "mirostat_tau", "mirostat_eta", "samplers", "logit_bias", "adaptive_target", "adaptive_decay",
)  # fmt: skip


class Placeholder(NamedTuple):
    """A value that the card leaves open. field: dotted; token: as it stands, with its <…>."""

    field: str
    token: str


class Server(Stated):
    """The command line behind the program, its environment, and the words in front of it."""

    wrapper: tuple[Text, ...] = ()
    """Words in front of the program: numactl, taskset, docker run …"""
    args: tuple[str, ...] = ()
    """Exactly as on a command line, one word an entry, without the program. Context, slots and so on are read from here."""
    env: FrozenMap[EnvName, str] = Field(default_factory=dict)
    """Added to the caller's environment."""
    secrets: FrozenMap[Text, EnvName] = Field(default_factory=dict)
    """Argument or environment variable of the server to the name of the variable that holds the secret for it."""
    complete: bool = True
    """false: the source states these arguments, but not the whole command line."""
    sources: FrozenMap[str, Text] = Field(default_factory=dict)
    """Argument or environment variable (as written in args or env) to where its value is stated."""

    @model_validator(mode="after")
    def _sources_name_fields(self) -> Self:
        # In place of the base's check: here sources name arguments. All of the section's faults are told together.
        refuse(
            [
                *secret.faults({"args": self.args, "wrapper": self.wrapper}, self.env),
                *arguments.faults(self.args, self.env),
                *self._with_nul(),
                *self._unknown(),
            ]
        )
        return self

    def _with_nul(self) -> Iterator[Fault]:
        words = [(f"args[{at}]", word) for at, word in enumerate(self.args)]
        words += [(f"wrapper[{at}]", word) for at, word in enumerate(self.wrapper)]
        words += [(f"env.{name}", value) for name, value in self.env.items()]
        for field, word in words:
            if "\0" in word:
                yield Fault(field, None, "holds a NUL, which no command line can", "remove it")

    def _unknown(self) -> Iterator[Fault]:
        given = {word.partition("=")[0] for word in self.args if word.startswith("-")} | set(self.env)
        names = given | {"wrapper", "args", "env", "secrets"}
        for key in self.sources:
            if key not in names:
                yield Fault(
                    f"sources.{key}", None, "is in neither args nor env", f"known here: {', '.join(sorted(names))}"
                )
        for key in self.secrets:
            if key in given:
                yield Fault(f"secrets.{key}", None, "is in args or env too", "leave it in secrets only")

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Every ``<…>`` in wrapper, args and env: what must be known before this card can start a server."""
        places = [(f"server.wrapper[{at}]", word) for at, word in enumerate(self.wrapper)]
        places += [(f"server.args[{at}]", word) for at, word in enumerate(self.args)]
        places += [(f"server.env.{name}", value) for name, value in self.env.items()]
        return tuple(Placeholder(field, token) for field, text in places for token in secret.PLACEHOLDER.findall(text))


class Sampling(Stated):
    """What every request carries."""

    values: FrozenMap[Text, Scalar] = Field(default_factory=dict)
    """temperature, top_p, top_k, min_p, …: by the names that the server's API takes."""
    seed: int | None = None

    @model_validator(mode="after")
    def _nothing_of_ours(self) -> Self:
        refuse(
            [
                Fault(f"values.{key}", value, "is not sampling", _OURS[key])
                for key, value in self.values.items()
                if key in _OURS
            ]
        )
        return self

    @model_validator(mode="after")
    def _no_near_miss(self) -> Self:
        refuse(
            [
                Fault(f"values.{key}", value, "the server would ignore this name", f"did you mean {near[0]!r}?")
                for key, value in self.values.items()
                if key not in _SAMPLING and (near := difflib.get_close_matches(key, _SAMPLING, n=1, cutoff=0.8))
            ]
        )
        return self


class Thinking(Stated):
    """Whether the model thinks, a part at a time, and how that is sent."""

    default: bool = False
    parts: FrozenMap[PartName, bool] = Field(default_factory=dict)
    """Parts that differ from the default."""
    send_on: FrozenMap[str, JsonValue] = Field(default_factory=dict)
    """Fields of the request where thinking is on."""
    send_off: FrozenMap[str, JsonValue] = Field(default_factory=dict)
    """Fields of the request where it is off: {"chat_template_kwargs": {"enable_thinking": false}}. Empty: nothing is sent."""

    @model_validator(mode="after")
    def _nothing_of_ours(self) -> Self:
        refuse(
            [
                Fault(f"{side}.{key}", None, "has nothing to do with thinking", _OURS[key])
                for side, fields in (("send_on", self.send_on), ("send_off", self.send_off))
                for key in fields
                if key in _OURS
            ]
        )
        return self

    def for_part(self, part: str) -> bool:
        """Whether the model thinks in this part."""
        return self.parts.get(cast("PartName", part), self.default)

    def request_fields(self, *, on: bool) -> dict[str, Any]:
        """The fields that a request carries for it; a copy."""
        return copy.deepcopy(dict(self.send_on if on else self.send_off))
