"""What is read from a card: its arguments, placeholders, thinking, engine kinds and paths; and that it stays as it is."""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import Tag, TypeAdapter, ValidationError

from pytest_llmbench.card import EngineBuild, LlamaServer, Placeholder, SetupCard, expand_path
from pytest_llmbench.card.base import BY_KIND
from pytest_llmbench.errors import CardError

if TYPE_CHECKING:
    from pathlib import Path


def load(folder: Path, **sections: Any) -> SetupCard:
    """A small card with some sections replaced."""
    small = {
        "llmbench_card": 1,
        "id": "small",
        "title": "A small card",
        "model": {"name": "M"},
        "engine": {"kind": "llama-server"},
        "plan": {"parts": ["prefill"], "prefill": {"depths": [512]}},
    }
    path = folder / "card.json"
    path.write_text(json.dumps(small | sections), encoding="utf-8")
    return SetupCard.load(path)


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        (["-c", "16384", "-np", "1"], {}, (16384, 1, False, 16384)),
        (["--ctx-size", "4096", "--parallel", "4"], {}, (4096, 4, False, 1024)),
        (["-c", "1", "-c", "9000", "-np", "4"], {}, (9000, 4, False, 2304)),  # 2250 rounded up to 256
        (["-c", "262144", "-np", "4", "-kvu"], {}, (262144, 4, True, 262144)),
        (["-c", "8192", "-np", "2", "-kvu", "--no-kv-unified"], {}, (8192, 2, False, 4096)),
        (["-c", "8192"], {}, (8192, None, True, 8192)),
        (["-c", "8192", "-np", "-1"], {}, (8192, None, True, 8192)),
        (["-c", "0", "-np", "2"], {}, (None, 2, False, None)),
        (["-c", "<262K>"], {}, (None, None, True, None)),
        ([], {"LLAMA_ARG_CTX_SIZE": "8192", "LLAMA_ARG_N_PARALLEL": "2"}, (8192, 2, False, 4096)),
        (["-np", "1"], {"LLAMA_ARG_CTX_SIZE": "8192", "LLAMA_ARG_N_PARALLEL": "2"}, (8192, 1, False, 8192)),
        (
            [],
            {"LLAMA_ARG_CTX_SIZE": "8192", "LLAMA_ARG_N_PARALLEL": "2", "LLAMA_ARG_KV_UNIFIED": "1"},
            (8192, 2, True, 8192),
        ),
    ],
)
def test_context_and_slots_are_read_from_the_command(
    tmp_path: Path, args: list[str], env: dict[str, str], expected: tuple[int | None, int | None, bool, int | None]
) -> None:
    card = load(tmp_path, server={"args": args, "env": env})
    assert (card.context, card.slots, card.unified_cache, card.slot_context) == expected


def test_other_settings_are_read_from_the_command(tmp_path: Path) -> None:
    words = ["-c", "8192", "-b", "2048", "--ubatch-size", "512", "-ctk", "q8_0", "-md", "d.gguf", "-ngld", "-1"]
    card = load(tmp_path, server={"args": [*words, "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]})
    assert (card.batch, card.micro_batch, card.cache_types) == (2048, 512, ("q8_0", None))
    assert card.draft_settings == {
        "-md": "d.gguf",
        "-ngld": "-1",
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "4",
    }


def test_placeholders_are_listed_and_text_for_the_model_is_not(tmp_path: Path) -> None:
    card = load(
        tmp_path,
        server={
            "wrapper": ["taskset", "-c", "<your cores>"],
            "args": ["-m", "<MODEL-DIR>/m.gguf", "--reverse-prompt", "<think>", "-r", "</s>", "-r", "<|im_end|>"],
            "env": {"CUDA_VISIBLE_DEVICES": "<GPU1-UUID>,<GPU2-UUID>"},
        },
    )
    assert card.placeholders == (
        Placeholder("server.wrapper[2]", "<your cores>"),
        Placeholder("server.args[1]", "<MODEL-DIR>"),
        Placeholder("server.env.CUDA_VISIBLE_DEVICES", "<GPU1-UUID>"),
        Placeholder("server.env.CUDA_VISIBLE_DEVICES", "<GPU2-UUID>"),
    )


def test_thinking_is_chosen_a_part_at_a_time(tmp_path: Path) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    card = load(tmp_path, thinking={"parts": {"long_answer": True}, "send_off": off})
    assert (card.thinking.for_part("decode"), card.thinking.for_part("long_answer")) == (False, True)
    fields = card.thinking.request_fields(on=False)
    assert fields == off
    fields["chat_template_kwargs"]["enable_thinking"] = True
    assert card.thinking.request_fields(on=False) == off
    assert card.thinking.request_fields(on=True) == {}


# ---- the object ---------------------------------------------------------------------------------------------------


def test_a_card_cannot_be_changed_but_copied_and_written(tmp_path: Path) -> None:
    card = load(tmp_path, server={"env": {"A": "1"}}, sampling={"values": {"top_k": 20, "temperature": 0.6}})
    with pytest.raises(ValidationError):
        card.title = "another"
    with pytest.raises(TypeError, match="frozen"):
        card.server.env["A"] = "2"  # type: ignore[index]
    with pytest.raises(TypeError, match="frozen"):
        card.sampling.values.update(top_k=1)  # type: ignore[attr-defined]
    assert copy.deepcopy(card) == card
    assert pickle.loads(pickle.dumps(card)) == card
    assert SetupCard.model_validate_json(json.dumps(card.as_json())) == card
    assert json.loads(json.dumps(dict(card.sampling.values))) == {"top_k": 20, "temperature": 0.6}


def test_a_second_engine_kind_is_one_class_and_one_line() -> None:
    class Vllm(EngineBuild):
        kind: Literal["vllm"]
        tensor_parallel: int | None = None

    engine: Any = Annotated[Annotated[LlamaServer, Tag("<llama-server>")] | Annotated[Vllm, Tag("<vllm>")], BY_KIND]
    adapter: TypeAdapter[EngineBuild] = TypeAdapter(engine)
    assert adapter.validate_json('{"kind": "vllm", "tensor_parallel": 2}') == Vllm(kind="vllm", tensor_parallel=2)
    assert adapter.validate_json('{"kind": "llama-server"}') == LlamaServer(kind="llama-server")
    with pytest.raises(ValidationError, match="tensor_parallel"):
        adapter.validate_json('{"kind": "llama-server", "tensor_parallel": 2}')
    with pytest.raises(ValidationError, match="<llama-server>', '<vllm>"):
        adapter.validate_json('{"kind": "sglang"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~/m.gguf", "/home/me/m.gguf"),
        ("$MODELS/m.gguf", "/data/m.gguf"),
        ("${MODELS}2/m.gguf", "/data2/m.gguf"),
        ("m.gguf", "m.gguf"),
        ("a~b", "a~b"),
    ],
)
def test_paths_may_hold_home_and_variables(text: str, expected: str) -> None:
    assert expand_path(text, {"HOME": "/home/me", "MODELS": "/data"}) == expected


def test_an_unset_variable_in_a_path_is_named() -> None:
    with pytest.raises(CardError, match="MODELS is not set"):
        expand_path("$MODELS/m.gguf", {"HOME": "/home/me"})
