"""Why a server did not start, in words a person can act on. Pure: log text and exit in, text out.

The patterns are lines that llama-server was seen to log (the CPU ones provoked on a real build, see the tests; the GPU
ones from public reports).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known cause, and what to do about it. kind: stable, for tests and reports."""

    kind: str
    cause: str
    remedy: str


# What became of flags: the old spelling → what to write today.
_RENAMED = {
    "--no-mmap": "-lm none",
    "--mmap": "-lm mmap",
    "--mlock": "-lm mlock",
    "-dio": "-lm dio",
    "--direct-io": "-lm dio",
    "-ndio": "-lm mmap",
    "--no-direct-io": "-lm mmap",
    "--draft": "--spec-draft-n-max N",
    "--draft-n": "--spec-draft-n-max N",
    "--draft-max": "--spec-draft-n-max N",
    "--draft-min": "--spec-draft-n-min N",
    "--draft-n-min": "--spec-draft-n-min N",
    "-cd": "no replacement (the draft takes the context of the model)",
    "--ctx-size-draft": "no replacement (the draft takes the context of the model)",
    "--spec-ngram-size-n": "--spec-ngram-simple-size-n N (or the one of your --spec-type)",
    "--spec-ngram-size-m": "--spec-ngram-simple-size-m N (or the one of your --spec-type)",
    "--spec-ngram-min-hits": "--spec-ngram-simple-min-hits N (or the one of your --spec-type)",
}
# The other way round: a card of today on an older build.
_NEWER = {
    "-lm": "--no-mmap, --mlock or nothing",
    "--load-mode": "--no-mmap, --mlock or nothing",
    "--spec-draft-n-max": "--draft-max N",
    "--spec-draft-n-min": "--draft-min N",
    "--spec-draft-model": "-md FILE",
    "-kvu": "nothing (older builds share the cache only by default)",
}


def diagnose(log: str, code: int | None) -> Diagnosis | None:
    """The first known cause that the log of a start, or its exit, shows; None where none is known.

    log: the whole log or its end. code: exit code, minus the signal's number, or None while the process still runs.
    """
    for pattern, explain in _LOG_CAUSES:
        match = pattern.search(log)
        if match:
            return explain(match, log)
    return _from_exit(log, code)


def _flag_unknown(match: re.Match[str], _: str) -> Diagnosis:
    flag = match["flag"]
    if flag in _RENAMED:
        return Diagnosis("flag renamed", f"this build no longer has {flag}", f"write {_RENAMED[flag]}")
    if flag in _NEWER:
        return Diagnosis(
            "flag renamed", f"this build does not have {flag} yet", f"write {_NEWER[flag]}, or use a newer build"
        )
    return Diagnosis(
        "flag unknown",
        f"this build does not know {flag}",
        "see `llama-server --help` of this build for its present name",
    )


def _flag_removed(match: re.Match[str], _: str) -> Diagnosis:
    flag = match["flag"]
    known = _RENAMED.get(flag)
    return Diagnosis(
        "flag renamed", f"this build no longer has {flag}", f"write {known}" if known else match["advice"].strip()
    )


def _flash_attn(match: re.Match[str], _: str) -> Diagnosis:
    flag = match["flag"]
    return Diagnosis("flag renamed", f"{flag} takes a value in this build", f"write {flag} on (or off, auto)")


def _flag_value(match: re.Match[str], _: str) -> Diagnosis:
    reason = match["reason"].strip().removeprefix("error: ")
    # C++'s own words for "not a number" and "too large".
    reason = {"stoi": "its value is not a whole number", "stof": "its value is not a number"}.get(reason, reason)
    return Diagnosis(
        "flag value", f"the value of {match['flag']} is refused: {reason}", f"correct {match['flag']} in server.args"
    )


def _model_missing(match: re.Match[str], log: str) -> Diagnosis:
    return Diagnosis(
        "model missing",
        f"{_which(log)} file cannot be opened: {match['path']} ({match['reason']})",
        "correct the model's path in the card",
    )


def _truncated(_: re.Match[str], log: str) -> Diagnosis:
    return Diagnosis(
        "model truncated",
        f"{_which(log)} file is shorter than its own index says{_loading(log)}",
        "download or copy it again; compare size and sha256",
    )


def _not_gguf(match: re.Match[str], log: str) -> Diagnosis:
    found = f" (it starts with {match['found']!r})" if match.groupdict().get("found") else ""
    return Diagnosis(
        "not a GGUF",
        f"{_which(log)} file is not a GGUF file{found}{_loading(log)}",
        "give a .gguf file (a git-lfs pointer or an HTML error page looks like this too)",
    )


def _unknown_architecture(match: re.Match[str], _: str) -> Diagnosis:
    return Diagnosis(
        "model too new",
        f"this build does not know the model architecture {match['arch']!r}",
        "use a newer llama.cpp build",
    )


def _port(match: re.Match[str], _: str) -> Diagnosis:
    return Diagnosis(
        "port in use",
        f"the server could not bind {match['host']}:{match['port']}: taken by another process, or not an address of this machine",
        "stop the other process, or leave the port to us (no --port in a wrapper)",
    )


def _out_of_memory(what: str, remedy: str) -> Callable[[re.Match[str], str], Diagnosis]:
    def explain(_: re.Match[str], log: str) -> Diagnosis:
        size, where = _failed_allocation(log)
        asked = f": {size:,.0f} MiB were asked for" if size is not None else ""
        return Diagnosis("out of memory", f"no memory for {what}{where}{asked}", remedy)

    return explain


def _driver(match: re.Match[str], _: str) -> Diagnosis:
    return Diagnosis(
        "GPU driver",
        f"CUDA could not be initialised: {match['reason'].strip()}",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES; the driver must be as new as the CUDA build of this engine",
    )


def _device(match: re.Match[str], _: str) -> Diagnosis:
    return Diagnosis(
        "no such device",
        f"the device {match['device']} is not there for this engine",
        "`llama-server --list-devices` names what it can use; check the driver, CUDA_VISIBLE_DEVICES and the engine's backend",
    )


def _library(match: re.Match[str], _: str) -> Diagnosis:
    return Diagnosis(
        "library missing",
        f"the shared library {match['library']} was not found",
        "keep the binary beside its libraries, set LD_LIBRARY_PATH in the card's environment, or install what is missing",
    )


def _which(log: str) -> str:
    return "the draft model" if "failed to load draft model" in log else "the model"


def _loading(log: str) -> str:
    match = re.search(r"failed to load (?:draft )?model,? '([^']+)'", log)
    return f": {match[1]}" if match else ""


def _failed_allocation(log: str) -> tuple[float | None, str]:
    """MiB of the last allocation that failed, and where (`` on device 0``)."""
    gpu = re.findall(r"allocating (\d+(?:\.\d+)?) MiB on device (\d+)", log)
    if gpu:
        return float(gpu[-1][0]), f" on device {gpu[-1][1]}"
    host = re.findall(r"attempted to allocate\s+(\d+(?:\.\d+)?) MB", log)
    if host:
        return float(host[-1]), " in system memory"
    size = re.findall(r"failed to allocate (\S+ )?buffer of size (\d+)", log)
    return (int(size[-1][1]) / 2**20, "") if size else (None, "")


def _from_exit(log: str, code: int | None) -> Diagnosis | None:
    if code is None:
        return None
    number = -code if code < 0 else code - 128
    if number == signal.SIGILL or "AMX is not ready" in log:
        return Diagnosis(
            "illegal instruction",
            "the binary uses instructions that this CPU lacks"
            + (" (it expects AMX)" if "AMX is not ready" in log else ""),
            "use a build for this CPU, or build it here with -DGGML_NATIVE=OFF (some virtual machines name AMX and cannot run it)",
        )
    if number == signal.SIGKILL:
        return Diagnosis(
            "killed",
            "something killed the server with SIGKILL, usually the kernel when memory ran out",
            "see `dmesg | grep -i oom` (in a container: its memory limit); ask for less context, a smaller model, --cache-ram 0",
        )
    return None


_LOG_CAUSES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Diagnosis]], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), explain)
    for pattern, explain in (
        (r"error while loading shared libraries: (?P<library>[^:\s]+)", _library),
        (r"Library not loaded: (?P<library>\S+)", _library),
        (r"invalid argument: (?P<flag>-\S+)", _flag_unknown),
        (r'handling argument "(?P<flag>[^"]+)": the argument has been removed\. (?P<advice>[^\n]+)', _flag_removed),
        (r'handling argument "(?P<flag>-fa|--flash-attn)": (?:expected value|error: unknown value)', _flash_attn),
        (r'handling argument "[^"]+": invalid device: (?P<device>\S+)', _device),
        (r'handling argument "(?P<flag>[^"]+)": (?P<reason>[^\n]+)', _flag_value),
        (
            r"couldn't bind (?:HTTP server socket|to server socket)[,:] hostname[:=] ?(?P<host>\S+?),? port[:=] ?(?P<port>\d+)",
            _port,
        ),
        (r"failed to open GGUF file '(?P<path>[^']+)' \((?P<reason>[^)]+)\)", _model_missing),
        (r"failed to open (?P<path>\S+\.gguf): (?P<reason>[^\n]+)", _model_missing),
        (r"data is not within the file bounds|failed to read (?:key-value pairs|tensor info)", _truncated),
        (r"invalid magic characters: '(?P<found>[^']*)'", _not_gguf),
        (r"gguf_init_from_\w+: failed to read magic", _not_gguf),
        (r"unknown model architecture: '(?P<arch>[^']+)'", _unknown_architecture),
        (
            r"failed to allocate buffer for kv cache|failed to allocate (?:buffer for )?(?:rs|recurrent) cache",
            _out_of_memory(
                "the KV cache",
                "ask for less context (-c), fewer slots (-np), or a smaller KV type (-ctk q8_0 -ctv q8_0)",
            ),
        ),
        (
            # Not `graph_reserve: failed to allocate compute buffers` alone: that one is tried again with less.
            r"(?:failed to initialize the context|llama_\w+): failed to allocate compute (?:pp |tg )?buffers",
            _out_of_memory(
                "the compute buffer",
                "ask for a smaller micro-batch (-ub), flash attention (-fa on), or less context (-c)",
            ),
        ),
        (
            r"unable to allocate \S+ buffer|ggml_aligned_malloc: insufficient memory|cudaMalloc failed: out of memory",
            _out_of_memory(
                "the model's weights",
                "offload fewer layers (-ngl), keep experts on the CPU (--n-cpu-moe), or take a smaller quantisation",
            ),
        ),
        (
            r"CUDA error: out of memory",
            _out_of_memory(
                "what the GPU was asked to hold", "offload fewer layers (-ngl), or ask for less context (-c)"
            ),
        ),
        (r"failed to initialize (?:CUDA|ROCm|HIP)[^:\n]*: (?P<reason>[^\n]+)", _driver),
        (r"CUDA error: (?P<reason>[^\n]+)", _driver),
    )
)


def exit_diagnosis(number: int) -> str:
    """What to do about a program that could not be executed, by errno name (see ExecError)."""
    return {
        2: "correct engine.binary (or server.wrapper) in the card",
        8: "the file is for another machine or system, or a script without a first line `#!…`: take a build for this one",
        13: "make it executable: chmod +x FILE (and check that its disk is not mounted noexec)",
    }.get(number, "see the reason above")


def tail(log: str, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log that say something; a debugger's backtrace after an abort would hide them, so it is left out."""
    kept, dropped = [], 0
    for line in log.splitlines():
        if not line.strip():
            continue
        if _BACKTRACE.match(line):
            dropped += 1
        else:
            kept.append(shortened(line, 400))
    shown = kept[-lines:]
    return [*shown, f"({dropped} lines of a backtrace left out)"] if dropped else shown


_BACKTRACE = re.compile(
    r"#\d+ |\[New LWP|\[Thread debugging|\[Inferior |Using host libthread_db|warning: \d+\s+\.\./|\d+\s+\.\./|0x[0-9a-f]{8,} in "
)


def failure_text(
    *,
    what: str,
    command: str,
    log: str,
    code: int | None,
    log_path: str,
    changes: tuple[str, ...] = (),
    known: Diagnosis | None = None,
) -> str:
    """The whole message of a server that did not start or died: what happened, why and what to do, the evidence, where to look.

    what: the first line. command: as run, secrets hidden. known: a cause that the caller knows better than the log.
    """
    found = known or diagnose(log, code)
    # Its first line is all that a summary shows.
    lines = [
        what if found is None or found.cause in what else f"{what}; known cause: {found.cause}",
        f"  command: {command}",
    ]
    if changes:
        lines.append(f"  changed by us: {'; '.join(changes)}")
    if found is not None:
        lines.append(f"  remedy: {found.remedy}")
    last = tail(log)
    label = "last log line:" if len(last) == 1 else f"last {len(last)} log lines:"
    lines += [f"  {label}", *(f"    {line}" for line in last)] if last else ["  the log is empty"]
    return "\n".join([*lines, f"  whole log: {log_path}"])
