"""The flags and ini values of a session. Nothing is read here: ``options`` does that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

# name, type, help; every one is a flag --llmbench-NAME, an ini llmbench_NAME and a variable LLMBENCH_NAME.
_VALUES: tuple[tuple[str, str, str], ...] = (
    ("storage", "DIR", "where runs and saved sessions are kept (default: ./.llmbench)"),
    ("parts", "LIST", "measure only these parts of the plan, comma-separated (decode,prefill,…)"),
    ("save", "NAME", "save the session's figures under this name, to compare with later"),
    ("compare", "NAME", "compare with the session saved under this name; refuses other cards and machines"),
    ("model", "PATH", "use this model file in place of the one that the card names (same size and hash)"),
    ("json", "PATH", "also write the report document to this path"),
    (
        "history",
        "URL",
        "where sessions are remembered: a file or a database URL (default: history.sqlite in the storage)",
    ),
    ("baseline", "FILE", "judge by the baselines of this file, in place of those that the history holds"),
    (
        "marks",
        "FILE",
        "the reviewed file of slow and flaky marks (default: llmbench-marks.json in pytest's root folder)",
    ),
    ("remeasure", "N", "measure a suspect cell again on at most N fresh servers before it is judged; 0: never"),
    (
        "control",
        "CARD",
        "run this card's server as the control, in turns with the setup's runs; off: none, whatever the card says",
    ),
    ("verdict", "PATH", "also write the verdict file to this path"),
    (
        "against",
        "CARD",
        "the old card: measure it in turns with the --setup card, in pairs of fresh servers, until it is known",
    ),
    ("margin", "PERCENT", "with --llmbench-against: changes within it are no matter (default: 2)"),
    ("pairs", "N", "with --llmbench-against: the most pairs of server starts (default: 30)"),
    ("budget", "MINUTES", "with --llmbench-against: no new pair that would end later than this"),
    ("ready-timeout", "SECONDS", "how long a server may load before it counts as failed (default: 600)"),
    ("silence-timeout", "SECONDS", "how long a request may be silent before it counts as hung (default: 1800)"),
)
# name, help; each is a list of whole numbers in place of the card's.
_LISTS: tuple[tuple[str, str], ...] = (
    ("levels", "requests at once of concurrency, in place of the card's (1,2,64)"),
    ("depths", "prompt tokens of prefill and context, in place of the card's (2048,16384)"),
    ("sizes", "context sizes of fit, in place of the card's (4096,8192)"),
)
# name, help; each is a switch --llmbench-NAME, an ini llmbench_NAME and a variable LLMBENCH_NAME.
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("no-history", "neither remember this session nor judge by earlier ones"),
    ("require-baseline", "a figure without a baseline fails"),
    ("strict", "a figure that stays inconclusive fails"),
)
COMPARE_FAIL = "compare-fail"
DEFAULT_TOLERANCE = 0.10


def key(name: str) -> str:
    """A flag's name as ini values and variables write it."""
    return name.replace("-", "_")


def add_options(parser: pytest.Parser) -> None:
    """Declare every flag and ini value. Nothing else happens here."""
    group = parser.getgroup("llmbench", "benchmarks of LLM servers")
    group.addoption(
        "--setup", action="append", metavar="CARD", help="a setup card (JSON) to measure; may be given several times"
    )
    for name, metavar, text in _VALUES:
        group.addoption(f"--llmbench-{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"llmbench_{key(name)}", text, default=None)
    for name, text in _LISTS:
        group.addoption(f"--llmbench-{name}", metavar="LIST", default=None, help=text)
    for name, text in _SWITCHES:
        group.addoption(f"--llmbench-{name}", action="store_true", default=None, help=text)
        parser.addini(f"llmbench_{key(name)}", text, type="bool", default=False)
    group.addoption(
        "--llmbench-accept",
        metavar="REASON",
        default=None,
        help="start new baselines with this session, and say why; its figures are not compared with the old ones",
    )
    group.addoption(
        "--llmbench-canary",
        metavar="WAY:SIZE",
        default=None,
        help="slow the server down on purpose, as in pause:10%%; labelled and kept apart (llmbench canary uses it)",
    )
    group.addoption(
        "--llmbench-runs", metavar="N", default=None, help="runs (rounds) of every cell, in place of the card's"
    )
    group.addoption(
        "--llmbench-probe",
        action="store_true",
        default=None,
        help="a trial: one run each, 128 tokens at most; labelled, kept, never judged, compared or saved",
    )
    group.addoption(
        "--llmbench-resume",
        nargs="?",
        const="last",
        default=None,
        metavar="RUN",
        help="go on with a run that was cut short: a session's id or folder (default: the card's last unfinished one)",
    )
    group.addoption(
        "--llmbench-supplement",
        metavar="RUN",
        default=None,
        help="add to a run the cells that lack a valid result, or replace the parts named by --llmbench-parts",
    )
    group.addoption(
        "--llmbench-supplement-reason",
        metavar="TEXT",
        default=None,
        help="why; stated beforehand, and part of the record",
    )
    group.addoption(
        f"--llmbench-{COMPARE_FAIL}",
        action="append",
        metavar="[FIGURE:]PERCENT",
        help="with --llmbench-compare: fail a figure that is worse by more than this (default: "
        f"{DEFAULT_TOLERANCE:.0%}); FIGURE: for one figure, as in decode_tok_s:5%%",
    )
    group.addoption(
        "--llmbench-autosave", action="store_true", default=None, help="save the session under its date and time"
    )
    group.addoption(
        "--llmbench-var",
        action="append",
        metavar="NAME=VALUE",
        help="fill the placeholder <NAME> of the card's server arguments and environment",
    )
    parser.addini("llmbench_setup", "setup cards to measure when no --setup is given", type="linelist", default=[])
