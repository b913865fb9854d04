"""Loading a card: one clear error for everything that is wrong, and no secret in it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from pytest_llmbench.card import SetupCard
from pytest_llmbench.errors import CardError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sesame-open-now"

BASE: dict[str, Any] = {
    "llmbench_card": 1,
    "id": "small",
    "title": "A small card",
    "model": {"name": "M", "file": {"path": "~/m.gguf"}},
    "engine": {"kind": "llama-server", "binary": {"name": "llama-server"}},
    "server": {"args": ["-m", "m.gguf", "-c", "16384", "-np", "1"]},
    "plan": {"parts": ["decode", "prefill"], "prefill": {"depths": [512, 2048]}},
}


def write(folder: Path, changes: dict[str, Any]) -> Path:
    """BASE with some dotted fields replaced; ``...`` removes a field."""
    data = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *way, last = dotted.split(".")
        place = data
        for key in way:
            place = place.setdefault(key, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    path = folder / "card.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def load(folder: Path, **changes: Any) -> SetupCard:
    return SetupCard.load(write(folder, {key.replace("__", "."): value for key, value in changes.items()}))


def test_smallest_card_has_the_methods_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, {"plan": ..., "server.args": ["-c", "262144", "-np", "4", "-kvu"]})
    card = SetupCard.load(str(path))
    plan = card.plan
    assert plan.parts == ("decode", "prefill", "concurrency", "context", "long_answer")
    assert (plan.decode.prompts, plan.decode.runs, plan.decode.warmups) == (("code", "prose"), 2, 1)
    assert (plan.prefill.depths, plan.prefill.runs) == ((2048, 8192, 32768), 3)
    assert (plan.concurrency.levels, plan.concurrency.rounds) == ((1, 2, 4, 8), 2)
    assert (plan.context.depths, plan.context.runs) == ((16384, 32768, 65536, 131072), 2)
    assert {plan.decode.max_tokens, plan.concurrency.max_tokens, plan.context.max_tokens} == {512}
    assert plan.long_answer.max_tokens is None
    assert plan.fit.max_tokens == 96
    assert card.client_check.decode_within == 0.01
    assert (card.client_check.ttft_above_fraction, card.client_check.ttft_above_ms) == (0.05, 50.0)
    assert card.validity.min_tokens == 256


def test_what_is_not_stated_stays_unknown(tmp_path: Path) -> None:
    card = load(tmp_path, hardware={"gpus": [{"name": "G"}]})
    assert card.hardware.gpus is not None
    gpu = card.hardware.gpus[0]
    assert (gpu.memory_mib, gpu.power_limit_w, gpu.uuid, gpu.unified_memory) == (None, None, None, None)
    assert card.sampling.seed is None
    assert load(tmp_path).hardware.gpus is None
    assert load(tmp_path, hardware={"gpus": []}).hardware.gpus == ()


# ---- what is wrong, and how it is said ----------------------------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown key", {"titel": "x"}, ["titel: unknown key", "did you mean 'title'?"]),
    ("unknown inner key", {"plan.decode.run": 3}, ["plan.decode.run: unknown key", "did you mean 'runs'?"]),
    (
        "unknown key in a union",
        {"model.file": {"path": "a", "fiel": "b"}},
        ["model.file.fiel: unknown key", "known: path"],
    ),
    ("missing", {"title": ...}, ["title: is missing", 'add "title"']),
    (
        "a later format",
        {"llmbench_card": 2},
        ["llmbench_card = 2: is no card format that this version reads", "write 1"],
    ),
    ("true for 1", {"llmbench_card": True}, ["llmbench_card = true: is no card format", "write 1"]),
    ("1.0 for 1", {"llmbench_card": 1.0}, ["llmbench_card = 1.0: is no card format", "write 1"]),
    ("id", {"id": "My Card"}, ["id = 'My Card'", "single hyphens"]),
    ("text for a number", {"plan.decode.runs": "2"}, ["plan.decode.runs = '2': must be a whole number, is text"]),
    ("fraction", {"plan.decode.runs": 2.5}, ["plan.decode.runs = 2.5: must be a whole number"]),
    ("truth for a number", {"plan.decode.runs": True}, ["plan.decode.runs = true: must be a whole number"]),
    ("object for a list", {"hardware.gpus": {"name": "x"}}, ["hardware.gpus", "must be a list, is an object"]),
    ("null section", {"hardware": None}, ["hardware: must be an object, is null"]),
    ("zero runs", {"plan.decode.runs": 0}, ["plan.decode.runs = 0: must be at least 1"]),
    ("level 0", {"plan.concurrency.levels": [1, 0]}, ["plan.concurrency.levels[1] = 0: must be at least 1"]),
    ("depth twice", {"plan.prefill.depths": [512, 512]}, ["plan.prefill.depths[1] = 512: is there twice"]),
    ("part twice", {"plan.parts": ["decode", "decode"]}, ["plan.parts[1] = 'decode': is there twice"]),
    ("no parts", {"plan.parts": []}, ["plan.parts", "name at least one"]),
    ("unknown part", {"plan.parts": ["prefil"]}, ["plan.parts[0] = 'prefil'", "did you mean 'prefill'?"]),
    ("unknown prompt", {"plan.decode.prompts": ["cod"]}, ["plan.decode.prompts[0] = 'cod'", "did you mean 'code'?"]),
    ("unknown thinking part", {"thinking.parts": {"decod": True}}, ["thinking.parts.decod", "did you mean 'decode'?"]),
    (
        "deeper than the context",
        {"plan.prefill.depths": [512, 16384]},
        ["plan.prefill.depths[1] = 16384", "need 16400; one request may use 16384", "at most 16368"],
    ),
    (
        "deeper than a slot",
        {"server.args": ["-c", "16384", "-np", "4"], "plan.prefill.depths": [512, 8192]},
        ["plan.prefill.depths[1] = 8192", "one request may use 4096 (-c 16384 in 4 slots without -kvu)"],
    ),
    (
        "an answer as large as the context",
        {"server.args": ["-c", "512"], "plan.parts": ["decode"]},
        ["plan.decode.max_tokens = 512: the answer alone fills the 512 tokens"],
    ),
    (
        "a shared cache that overflows",
        {
            "server.args": ["-c", "1024", "-np", "4", "-kvu"],
            "plan.parts": ["concurrency"],
            "plan.concurrency.levels": [1, 2],
        },
        ["plan.concurrency.levels[1] = 2: 2 answers of 512 tokens at once overflow the shared cache of 1024"],
    ),
    ("fit without a size", {"server.args": [], "plan.parts": ["fit"]}, ["plan.fit: the card names no context"]),
    ("fit going down", {"plan.fit": {"sizes": [8192, 4096]}}, ["plan.fit.sizes = [8192, 4096]: does not go up"]),
    (
        "fit said twice",
        {"plan.fit": {"sizes": [4096], "largest": 8192}},
        ["plan.fit.sizes: smallest or largest is there"],
    ),
    ("endless long answer", {"plan.long_answer.ignore_eos": True}, ["plan.long_answer.ignore_eos = true", "by itself"]),
    ("unknown cell", {"thresholds": {"decode[cod]": {}}}, ["thresholds.decode[cod]: no such cell", "'decode[code]'?"]),
    ("cell of another plan", {"thresholds": {"conc[1]": {}}}, ["thresholds.conc[1]: no such cell", "prefill[512]"]),
    (
        "unknown figure",
        {"thresholds": {"decode[code]": {"tok_s": {"floor": 1}}}},
        ["thresholds.decode[code].tok_s: decode has no such figure", "did you mean 'decode_tok_s'?"],
    ),
    ("empty limit", {"thresholds": {"decode[code]": {"ttft_ms": {}}}}, ["ttft_ms: has neither floor nor target"]),
    (
        "target under the floor",
        {"thresholds": {"decode[code]": {"decode_tok_s": {"floor": 5, "target": 4}}}},
        ["thresholds.decode[code].decode_tok_s.target = 4.0: the target is below the floor (5)"],
    ),
    (
        "target over a ceiling",
        {"thresholds": {"decode[code]": {"ttft_ms": {"floor": 100, "target": 200}}}},
        ["thresholds.decode[code].ttft_ms.target = 200.0: the target is above the floor (100)"],
    ),
    ("not a number", {"server.args": ["-c", "16K"]}, ["server.args[0]: -c needs a whole number, found '16K'"]),
    ("no value", {"server.args": ["-np"]}, ["server.args[0]: -np needs a value, and nothing follows"]),
    ("source of nothing", {"server.sources": {"-ngl": "x"}}, ["server.sources.-ngl: is in neither args nor env"]),
    ("source of no field", {"hardware.sources": {"gpu": "x"}}, ["hardware.sources.gpu: names no field"]),
    ("engine kind", {"engine": {"kind": "vllm"}}, ["engine.kind = 'vllm': unknown kind", "known: llama-server"]),
    ("engine without kind", {"engine": {}}, ["engine.kind: is missing", "llama-server"]),
    ("engine as text", {"engine": "llama-server"}, ["engine = 'llama-server': must be an object"]),
    (
        "two places",
        {"engine.binary": {"path": "a", "name": "b"}},
        ["engine.binary: must hold exactly one of path, name, package, in_wrapper"],
    ),
    (
        "image by tag",
        {"engine.origin": {"kind": "container", "image": "x", "digest": "latest"}},
        ["engine.origin.digest = 'latest'", "sha256:"],
    ),
    (
        "hub by branch",
        {"model.file": {"hf_repo": "a/b", "revision": "main", "file": "f"}},
        ["model.file.revision = 'main'", "hexadecimal"],
    ),
    ("sampling that is ours", {"sampling.values": {"seed": 1}}, ["sampling.values.seed = 1", 'beside "values"']),
    ("nested sampling", {"sampling.values": {"stop": ["x"]}}, ['sampling.values.stop = ["x"]: must be a number, text']),
    (
        "one uuid for two",
        {"hardware.gpus": [{"name": "x", "uuid": "GPU-1", "count": 2}]},
        ["hardware.gpus[0].count = 2"],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_one_fault_is_named_with_field_reason_and_remedy(
    tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    path = write(tmp_path, changes)
    with pytest.raises(CardError) as caught:
        SetupCard.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "faults" not in text
    assert [part for part in expected if part not in text] == [], text


def test_several_faults_are_listed_together(tmp_path: Path) -> None:
    path = write(tmp_path, {"titel": "x", "plan.decode.runs": 0, "model.sha256": "abc"})
    with pytest.raises(CardError) as caught:
        SetupCard.load(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 3 faults"
    assert [line.split(" ")[2] for line in lines if line.startswith("  ") and line[2] != " "] == [
        "model.sha256",
        "plan.decode.runs",
        "titel:",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{\n  "id": "x",\n  "title": "y",\n}', "line 4, column 1"),
        (b'{"id": "x" "title": "y"}', "line 1, column 12"),
        (b"", "is empty"),
        (b"[]", "is a list, not an object"),
        (b'{"seed": NaN}', "is not JSON"),
        (b'{"id": "a", "id": "b"}', "id: the key stands twice in one object"),
        (b'{"title": "\xff"}', "is not UTF-8 text (byte 11)"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_what_is_not_a_json_object_is_refused_with_its_place(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "card.json"
    path.write_bytes(content)
    with pytest.raises(CardError) as caught:
        SetupCard.load(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(CardError, match="no such file"):
        SetupCard.load(tmp_path / "none.json")
    with pytest.raises(CardError, match="is a directory"):
        SetupCard.load(tmp_path)


def test_byte_order_mark_of_windows_editors_is_accepted(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert SetupCard.load(path).id == "small"


# ---- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"server.args": ["--api-key", SECRET]},
        {"server.args": [f"--api-key={SECRET}"]},
        {"server.args": ["-hft", SECRET]},
        {"server.args": ["--alias", f"sk-{SECRET}-0123456789"]},
        {"server.env": {"HF_TOKEN": SECRET}},
        {"server.env": {"LLAMA_API_KEY": SECRET}},
        {"server.env": {"https_proxy": f"http://me:{SECRET}@proxy:3128"}},
        {"server.wrapper": ["docker", "run", "-e", f"HF_TOKEN={SECRET}", "image"]},
        {"server.args": f"--api-key {SECRET}"},
        {"server.env": [f"HF_TOKEN={SECRET}"]},
        {"server.secrets": {"--api-key": SECRET}},
        {"server.api_key": SECRET},
    ],
)
def test_a_literal_secret_is_refused_and_never_shown(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path, changes)
    with pytest.raises(CardError) as caught:
        SetupCard.load(path)
    assert "server." in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError) as raw:
        SetupCard.model_validate_json(path.read_text(encoding="utf-8"))
    assert SECRET not in str(raw.value)


def test_secrets_go_by_the_name_of_a_variable(tmp_path: Path) -> None:
    secrets = {"--api-key": "MY_KEY", "HF_TOKEN": "MY_TOKEN"}
    card = load(
        tmp_path,
        server={
            "args": ["--api-key-file", "keys.txt", "--special", "-e", "HF_TOKEN"],
            "env": {"TOKENIZERS_PARALLELISM": "false"},
            "secrets": secrets,
        },
        plan={"parts": ["decode"]},
    )
    assert card.server.secrets == secrets
