"""llama-server's command line, as far as a server without a model can mean it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pytest_llmbench.paced.flags import SWITCHES, VALUED

_ALIASES: Final = {
    "--model": "-m", "--ctx-size": "-c", "--parallel": "-np", "--alias": "-a", "--kv-unified": "-kvu",
    "--no-kv-unified": "-no-kvu", "--predict": "-n", "--n-predict": "-n", "--help": "-h", "--usage": "-h",
}  # fmt: skip
_NUMBERS: Final = frozenset({"-c", "-np", "--port", "-n"})
_REMOVED: Final = {
    "--draft": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-n": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-max": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--draft-n-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "the respective --spec-ngram-*-size-n",
    "--spec-ngram-size-m": "the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "the respective --spec-ngram-*-min-hits",
}
_OURS: Final = frozenset({"--paced", "--paced-file"})


class CommandError(Exception):
    """A command line that the real server refuses too; the text is what goes to stderr before exit code 1."""


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments that mean something here; defaults are llama-server's."""

    model: str = ""
    alias: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    n_predict: int | None = None
    metrics: bool = False
    slots: bool = True
    api_keys: tuple[str, ...] = ()
    paced: str | None = None
    paced_file: str | None = None
    show: str | None = None
    seen: tuple[str, ...] = field(default=())

    @property
    def n_slots(self) -> int:
        return 4 if self.parallel is None or self.parallel < 1 else self.parallel

    @property
    def unified(self) -> bool:
        """One cache for all slots: by default only where the number of slots was not asked for."""
        return self.kv_unified if self.kv_unified is not None else self.parallel is None or self.parallel < 1

    @property
    def model_name(self) -> str:
        return self.alias.split(",")[0] if self.alias else self.model

    def n_ctx_slot(self, n_ctx_train: int) -> int:
        """The context of one slot: the whole one with a unified cache, else a share rounded up to 256."""
        total = self.ctx_size or n_ctx_train
        share = total if self.unified else -(-total // self.n_slots)
        return min(-(-share // 256) * 256, n_ctx_train)


def parse_command(args: list[str]) -> Options:
    """Options of a command line. Raises CommandError with the real server's words."""
    options = Options()
    words = iter(args)
    for word in words:
        flag = "--" + word[2:].replace("_", "-") if word.startswith("--") else word
        if flag == "--control-vector-layer-range":
            _value(flag, words)
            _value(flag, words)
        elif flag in SWITCHES:
            options = _switch(options, _ALIASES.get(flag, flag))
        elif flag in VALUED or flag in _OURS:
            options = _valued(options, flag, _value(flag, words))
        else:
            raise CommandError(f"error: invalid argument: {flag}")
    return options


def _value(flag: str, words: object) -> str:
    value = next(words, None)  # type: ignore[call-overload]
    if value is None:
        raise CommandError(
            f'error while handling argument "{flag}": expected value for argument\n\n\nto show complete usage, run with -h'
        )
    return str(value)


def _switch(options: Options, flag: str) -> Options:
    if flag in ("-h", "--version") and options.show is None:
        return replace(options, show="version" if flag == "--version" else "help")
    if flag == "-kvu":
        return replace(options, kv_unified=True)
    if flag == "-no-kvu":
        return replace(options, kv_unified=False)
    if flag == "--metrics":
        return replace(options, metrics=True)
    if flag in ("--slots", "--no-slots"):
        return replace(options, slots=flag == "--slots")
    return options


def _valued(options: Options, flag: str, value: str) -> Options:
    name = _ALIASES.get(flag, flag)
    if flag in _REMOVED:
        raise CommandError(
            f'error while handling argument "{flag}": the argument has been removed. use {_REMOVED[flag]}'
        )
    number = 0
    if name in _NUMBERS:
        try:
            number = int(value)
        except ValueError:
            raise CommandError(
                f'error while handling argument "{flag}": stoi\n\n\nto show complete usage, run with -h'
            ) from None
    if name == "-n":
        return replace(options, n_predict=number if number >= 0 else None)
    if name == "--api-key":
        return replace(options, api_keys=tuple(key for key in value.split(",") if key))
    if name == "--api-key-file":
        lines = Path(value).read_text(encoding="utf-8").splitlines()
        return replace(options, api_keys=tuple(line for line in lines if line))
    numbers = {"-c": "ctx_size", "-np": "parallel", "--port": "port"}
    texts = {"-m": "model", "-a": "alias", "--host": "host", "--paced": "paced", "--paced-file": "paced_file"}
    if name in numbers:
        return replace(options, **{numbers[name]: number})  # type: ignore[arg-type]
    if name in texts:
        return replace(options, **{texts[name]: value})  # type: ignore[arg-type]
    return options
