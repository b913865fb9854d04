"""The argument editor, on command lines as people publish them."""

from __future__ import annotations

import shlex

import pytest

from pytest_llmbench.card_flags import BY_NAME, FLAGS
from pytest_llmbench.engine.command import Arguments, redact, shell_line

PAGE = tuple(
    shlex.split(
        "-m Qwen3.8-35B-A3B-Q4_K_M.gguf --alias qwen38 -ngl all --n-cpu-moe 27 -lm none -fit off -fa on -c 262144 -np 4 -kvu "
        "-b 2048 -ub 2048 -t 8 -tb 8 --jinja --temp 0.6 --top-p 0.95 --top-k 20 --seed 42 --host 127.0.0.1 --port 8888 "
        "--cache-ram 0 --no-webui --metrics"
    )
)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--ctx-size", "262144"),
        ("--model", "Qwen3.8-35B-A3B-Q4_K_M.gguf"),
        ("-a", "qwen38"),
        ("--parallel", "4"),
        ("--ubatch-size", "2048"),
        ("--batch-size", "2048"),
        ("--n-gpu-layers", "all"),
        ("--flash-attn", "on"),
        ("--threads", "8"),
        ("--threads-batch", "8"),
        ("-s", "42"),
        ("--temperature", "0.6"),
        ("-cram", "0"),
        ("-ncmoe", "27"),
        ("--load-mode", "none"),
        ("--port", "8888"),
        ("-kvu", None),
        ("-md", None),
    ],
)
def test_get_by_any_alias(flag: str, value: str | None) -> None:
    assert Arguments(PAGE).get(flag) == value


def test_set_replaces_one_token_and_leaves_the_rest() -> None:
    changed = Arguments(PAGE).set("--ctx-size", "4096")
    assert changed.tokens == tuple("4096" if token == "262144" else token for token in PAGE)


def test_set_keeps_the_spelling_and_appends_where_absent() -> None:
    assert Arguments(("--ctx-size", "1", "-x")).set("-c", "2").tokens == ("--ctx-size", "2", "-x")
    assert Arguments(("-x",)).set("-c", "2").tokens == ("-x", "-c", "2")
    assert Arguments(("-x",)).set("--metrics").tokens == ("-x", "--metrics")


def test_the_last_of_repeated_flags_counts_and_set_keeps_only_its_place() -> None:
    args = Arguments(("-c", "1", "--jinja", "--ctx-size=2", "-np", "4", "-c", "3", "-t", "8"))
    assert args.get("-c") == "3"
    assert args.get_all("-c") == ("1", "2", "3")
    assert args.set("-c", "9").tokens == ("--jinja", "-np", "4", "-c", "9", "-t", "8")
    assert args.remove("-c").tokens == ("--jinja", "-np", "4", "-t", "8")


def test_joined_values_and_underscores() -> None:
    args = Arguments(("--ctx_size=8192", "--cache-type-k", "q8_0"))
    assert args.get("-c") == "8192"
    assert args.set("-c", "1").tokens == ("--ctx_size=1", "--cache-type-k", "q8_0")
    assert Arguments(("--ctx_size", "5")).get("-c") == "5"


def test_negative_numbers_are_values() -> None:
    args = Arguments(("--seed", "-1", "-ngl", "-1", "-c", "0"))
    assert (args.get("-s"), args.get("-ngl"), args.get("-c")) == ("-1", "-1", "0")
    assert args.set("--seed", "42").tokens == ("--seed", "42", "-ngl", "-1", "-c", "0")


def test_a_value_is_never_taken_for_a_flag() -> None:
    args = Arguments(("--chat-template", "-c", "-a", "--metrics", "-np", "2"))
    assert args.get("-c") is None
    assert not args.has("--metrics")
    assert args.set("-c", "7").tokens == ("--chat-template", "-c", "-a", "--metrics", "-np", "2", "-c", "7")


def test_switches_and_their_negations() -> None:
    assert Arguments(("-kvu",)).has("--kv-unified")
    assert not Arguments(("-kvu", "-no-kvu")).has("-kvu")
    assert Arguments(("-kvu", "--no-kv-unified")).has("-no-kvu")
    assert Arguments(("-x", "-no-kvu", "-y")).set("-kvu").tokens == ("-x", "-kvu", "-y")
    assert Arguments(("-kvu", "-x", "-no-kvu")).remove("-kvu").tokens == ("-x",)
    assert not Arguments(()).has("-kvu")


def test_flash_attention_bare_and_with_a_value() -> None:
    assert Arguments(("-fa", "on", "-c", "1")).get("-fa") == "on"
    bare = Arguments(("-fa", "-c", "1"))
    assert bare.has("-fa")
    assert bare.get("-fa") is None
    assert bare.get("-c") == "1"
    assert bare.set("-fa", "on").tokens == ("-fa", "on", "-c", "1")


def test_unknown_flags_stay_and_can_be_edited_when_named() -> None:
    args = Arguments(("--new-thing", "5", "--other", "-c", "1"))
    assert args.get("-c") == "1"
    assert args.get("--new-thing") == "5"
    assert args.get("--other") is None
    assert args.has("--other")
    assert args.set("--new-thing", "6").tokens == ("--new-thing", "6", "--other", "-c", "1")
    assert args.set("--third", "x").tokens == (*args.tokens, "--third", "x")


def test_draft_flags_are_not_the_models() -> None:
    args = Arguments(("-m", "a.gguf", "--spec-draft-model", "d.gguf", "-ctk", "q8_0", "-ctkd", "f16"))
    assert (args.get("-m"), args.get("-md"), args.get("-ctk")) == ("a.gguf", "d.gguf", "q8_0")


def test_a_flag_with_two_values() -> None:
    args = Arguments(("--control-vector-layer-range", "1", "20", "-c", "1"))
    assert args.get("--control-vector-layer-range") == "1 20"
    assert args.remove("--control-vector-layer-range").tokens == ("-c", "1")
    assert args.set("--control-vector-layer-range", "2 3").tokens[:3] == ("--control-vector-layer-range", "2", "3")


def test_a_value_missing_at_the_end() -> None:
    assert Arguments(("-c",)).get("-c") is None
    assert Arguments(("-c",)).set("-c", "1").tokens == ("-c", "1")


def test_no_spelling_belongs_to_two_flags() -> None:
    assert len(BY_NAME) == sum(len(flag.names) + len(flag.off) for flag in FLAGS)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", "s3cret", "-c", "1"], ["--api-key", "***", "-c", "1"]),
        (["--api-key=s3cret"], ["--api-key=***"]),
        (["-hft", "hf_x"], ["-hft", "***"]),
        (["--hf_token", "hf_x"], ["--hf_token", "***"]),
        (["--api-key-file", "keys.txt"], ["--api-key-file", "keys.txt"]),
        (["docker", "run", "-e", "HF_TOKEN=hf_x", "-e", "N=1"], ["docker", "run", "-e", "HF_TOKEN=***", "-e", "N=1"]),
        (["-mu", "https://me:pass@host/m.gguf"], ["-mu", "https://***@host/m.gguf"]),
        (["--image-max-tokens", "64", "--some-password", "x"], ["--image-max-tokens", "64", "--some-password", "***"]),
    ],
)
def test_redact_hides_values_of_secrets_only(argv: list[str], shown: list[str]) -> None:
    assert redact(argv) == tuple(shown)


def test_shell_line_can_be_pasted() -> None:
    line = shell_line(
        ["/opt/my server", "--api-key", "k", "-a", "it's"], [("CUDA_VISIBLE_DEVICES", "0"), ("API_KEY", "k")]
    )
    assert line == """CUDA_VISIBLE_DEVICES=0 API_KEY='***' '/opt/my server' --api-key '***' -a 'it'"'"'s'"""
    assert shlex.split(line)[-1] == "it's"
