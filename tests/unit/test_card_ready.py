"""The ready cards, the schema, and cards of what people really publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_llmbench.card import FIGURES, SetupCard
from pytest_llmbench.card.__main__ import main
from pytest_llmbench.card.schema import SCHEMA_PATH, schema_text
from pytest_llmbench.plan import cells

CARDS = Path(__file__).parents[2] / "bench_suites" / "cards"
ALL = sorted(CARDS.glob("*.json"))

# As the page prints it, section "Setup", step 2.
PAGE_COMMAND = r"""
    CUDA_DEVICE_ORDER=PCI_BUS_ID \
      CUDA_VISIBLE_DEVICES=<GPU1-UUID> llama-server \
      -m Qwen3.8-35B-A3B-Q4_K_M.gguf \
      --alias qwen38-35b-a3b-distill-q4km \
      -ngl all \
      --n-cpu-moe 27 \
      -lm none \
      -fit off \
      -fa on \
      -c 262144 \
      -np 4 \
      -kvu \
      -b 2048 \
      -ub 2048 \
      -t 8 \
      -tb 8 \
      --jinja \
      --temp 0.6 \
      --top-p 0.95 \
      --top-k 20 \
      --seed 42 \
      --host 127.0.0.1 \
      --port 8888 \
      --cache-ram 0 \
      --no-webui \
      --metrics
"""


def test_the_five_ready_cards_are_there() -> None:
    assert [path.stem for path in ALL] == [
        "control",
        "demo",
        "rtx3060-qwen38-35b-a3b-q4km-q8kv",
        "rtx5060ti-qwen38-35b-a3b-q4km",
        "rtxpro6000-qwen35-122b-a10b-mtp2-q4km",
    ]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_ready_card_loads_and_fits_the_schema_it_refers_to(path: Path) -> None:
    card = SetupCard.load(path)
    assert card.id == path.stem
    data = json.loads(path.read_text(encoding="utf-8"))
    schema_path = path.parent / data["$schema"]
    schema = json.loads(schema_path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(data)
    assert schema_path.resolve() == SCHEMA_PATH.resolve()


def test_the_kept_schema_is_the_models() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(), "run: python -m pytest_llmbench.card"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize(
    "change", [{"titel": "x"}, {"id": "My Card"}, {"plan": {"parts": ["speed"]}}, {"engine": {"kind": "vllm"}}]
)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    data = json.loads((CARDS / "demo.json").read_text(encoding="utf-8")) | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(schema_text())).validate(data)


def test_the_schema_describes_fields_for_editors() -> None:
    schema = json.loads(schema_text())
    described = schema["$defs"]["Server"]["properties"]["args"]["description"]
    assert described.startswith("Exactly as on a command line")


def test_the_first_cards_command_is_the_pages_token_by_token() -> None:
    card = SetupCard.load(CARDS / "rtx5060ti-qwen38-35b-a3b-q4km.json")
    assert card.engine.binary is not None
    env = [f"{name}={value}" for name, value in card.server.env.items()]
    command = [*env, card.engine.binary.model_dump()["name"], *card.server.args]
    assert command == PAGE_COMMAND.replace("\\\n", "").split()
    assert card.server.wrapper == ()
    assert card.server.complete
    assert (card.context, card.slots, card.unified_cache, card.slot_context) == (262144, 4, True, 262144)
    assert [place.token for place in card.placeholders] == ["<GPU1-UUID>"]
    named = {word for word in card.server.args if word.startswith("-")} - {"-m"} | set(card.server.env)
    assert named == set(card.server.sources)


def test_the_first_cards_plan_is_the_pages_38_runs_and_61_requests() -> None:
    plan = cells(SetupCard.load(CARDS / "rtx5060ti-qwen38-35b-a3b-q4km.json"))
    by_part: dict[str, int] = {}
    for spec in plan:
        by_part[spec.part] = by_part.get(spec.part, 0) + spec.runs
    assert by_part == {"decode": 4, "prefill": 9, "concurrency": 8, "context": 16, "long_answer": 1}
    assert sum(spec.runs for spec in plan) == 38
    assert sum(spec.requests for spec in plan) == 61


@pytest.mark.parametrize(
    ("stem", "figures"),
    [
        ("rtx5060ti-qwen38-35b-a3b-q4km", 122),
        ("rtxpro6000-qwen35-122b-a10b-mtp2-q4km", 29),
        ("rtx3060-qwen38-35b-a3b-q4km-q8kv", 2),
        ("demo", 0),
    ],
)
def test_published_figures_are_all_there_with_their_source(stem: str, figures: int) -> None:
    card = SetupCard.load(CARDS / f"{stem}.json")
    assert len(card.published) == figures
    assert not card.thresholds or stem == "demo"


def test_settings_without_a_command_line_are_marked_and_sourced() -> None:
    for stem in ("rtxpro6000-qwen35-122b-a10b-mtp2-q4km", "rtx3060-qwen38-35b-a3b-q4km-q8kv"):
        card = SetupCard.load(CARDS / f"{stem}.json")
        assert not card.server.complete
        assert card.model.file is None
        assert {word for word in card.server.args if word.startswith("-")} == set(card.server.sources)
        assert (card.model.size_bytes, card.model.sha256, card.slots) == (None, None, None)


def test_command_line_checks_cards_and_names_the_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}", encoding="utf-8")
    assert main(["--check", str(CARDS / "demo.json")]) == 0
    assert main(["--check", str(CARDS / "demo.json"), str(bad)]) == 1
    assert str(bad) in capsys.readouterr().err


# ---- what people really publish -----------------------------------------------------------------------------------

SHA = "0" * 63 + "1"
PEOPLE: dict[str, dict[str, Any]] = {
    "several mixed GPUs": {
        "hardware": {
            "gpus": [
                {
                    "vendor": "NVIDIA",
                    "name": "NVIDIA GeForce RTX 3090",
                    "count": 2,
                    "power_limit_w": 250,
                    "role": "layers",
                },
                {"vendor": "AMD", "name": "Radeon RX 7900 XTX", "memory_mib": 24560, "role": "draft model"},
            ],
            "topology": "2 x PCIe 4.0 x8, one x4",
            "backend": {"name": "vulkan", "version": "1.4.304"},
        }
    },
    "AMD with its driver variant": {
        "hardware": {
            "gpus": [{"vendor": "AMD", "name": "Radeon AI PRO R9700"}],
            "driver": {"name": "Mesa", "version": "25.2.1", "variant": "RADV"},
            "backend": {"name": "rocm", "version": "7.0.2", "variant": "hipBLASLt off"},
        }
    },
    "unified memory Mac": {
        "hardware": {
            "gpus": [{"vendor": "Apple", "name": "M3 Ultra", "unified_memory": True}],
            "ram_gb": 512,
            "os": "macOS 15.5",
            "backend": {"name": "metal"},
            "state": {"power_mode": "high power", "facts": {"iogpu_wired_limit_mib": 458752}},
        }
    },
    "GB10": {
        "hardware": {
            "gpus": [{"vendor": "NVIDIA", "name": "NVIDIA GB10", "unified_memory": True, "memory_mib": None}],
            "nodes": 2,
            "topology": "ConnectX-7, 200 Gbit/s",
        }
    },
    "Strix Halo": {
        "hardware": {
            "gpus": [{"vendor": "AMD", "name": "Radeon 8060S", "unified_memory": True}],
            "state": {"governor": "performance", "system_profile": "accelerator-performance"},
            "facts": {"gtt_limit_mib": 110000},
        }
    },
    "no GPU, pinned": {
        "hardware": {"gpus": [], "state": {"governor": "performance", "facts": {"smt": False}}},
        "server": {
            "wrapper": ["numactl", "--cpunodebind=0", "--membind=0", "taskset", "-c", "0-15"],
            "args": ["-c", "32768"],
        },
    },
    "container by digest": {
        "engine": {
            "kind": "llama-server",
            "binary": {"in_wrapper": "/app/llama-server"},
            "origin": {
                "kind": "container",
                "image": "ghcr.io/ggml-org/llama.cpp:server-cuda",
                "digest": f"sha256:{SHA}",
            },
        },
        "server": {
            "wrapper": [
                "docker",
                "run",
                "--rm",
                "--gpus",
                "all",
                "-v",
                "$HOME/models:/models",
                "ghcr.io/ggml-org/llama.cpp",
            ],
            "args": ["-m", "/models/m.gguf", "-c", "32768"],
            "secrets": {"HF_TOKEN": "HF_TOKEN"},
        },
    },
    "container with an entrypoint": {
        "engine": {"kind": "llama-server", "binary": {"in_wrapper": None}},
        "server": {"wrapper": ["docker", "run", "image"], "args": ["-c", "32768"]},
    },
    "fork": {
        "engine": {
            "kind": "llama-server",
            "binary": {"path": "~/ik_llama.cpp/build/bin/llama-server", "sha256": SHA},
            "origin": {"kind": "fork", "repository": "ikawrakow/ik_llama.cpp", "branch": "main", "commit": "0c6dca2fa"},
        }
    },
    "pull request head": {
        "engine": {
            "kind": "llama-server",
            "origin": {
                "kind": "pull-request",
                "repository": "ggml-org/llama.cpp",
                "number": 16095,
                "commit": "be4a6a63e",
            },
        }
    },
    "commit": {
        "engine": {
            "kind": "llama-server",
            "origin": {"kind": "commit", "repository": "ggml-org/llama.cpp", "commit": "0c6dca2fa"},
        }
    },
    "draft model with its own settings": {
        "model": {
            "name": "Qwen3-32B",
            "file": {"path": "$MODELS/q.gguf"},
            "draft_model": {
                "name": "Qwen3-0.6B",
                "file": {"path": "$MODELS/d.gguf"},
                "quantization": "Q8_0",
                "sha256": SHA,
            },
        },
        "server": {
            "args": ["-m", "q.gguf", "-md", "d.gguf", "-ngld", "99", "--spec-type", "draft-simple", "-fit", "on"]
        },
    },
    "figures with their definition and tool": {
        "published": [
            {
                "figure": "tg128",
                "value": "42935 ± 240",
                "unit": "t/s",
                "definition": "llama-bench mean ± sd of 5",
                "tool": "llama-bench b9775",
                "conditions": "-p 0 -n 128",
                "source": "a forum post",
            },
            {"figure": "energy per token", "value": 0.21, "unit": "J", "source": "a forum post"},
        ]
    },
    "every kind of sampling value": {
        "sampling": {"values": {"temperature": 1, "top_p": 0.95, "samplers": "k;p;t", "reasoning": False}, "seed": -1}
    },
}


@pytest.mark.parametrize("change", PEOPLE.values(), ids=PEOPLE.keys())
def test_what_people_publish_can_be_written(tmp_path: Path, change: dict[str, Any]) -> None:
    base = {
        "llmbench_card": 1,
        "id": "somebody",
        "title": "Somebody's setup",
        "model": {"name": "M"},
        "engine": {"kind": "llama-server"},
        "plan": {"parts": ["decode"]},
    }
    data = base | change
    path = tmp_path / "card.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    card = SetupCard.load(path)
    jsonschema.Draft202012Validator(json.loads(schema_text())).validate(data)
    written = card.as_json()
    for section, stated in change.items():
        assert _stated(stated, written[section]), section


def _stated(stated: Any, written: Any) -> bool:
    """Everything stated is in what the card writes again; null is the same as left out."""
    if isinstance(stated, dict):
        return all(value is None or _stated(value, written[key]) for key, value in stated.items())
    if isinstance(stated, list):
        return len(stated) == len(written) and all(map(_stated, stated, written))
    return bool(stated == written) and isinstance(written, bool) == isinstance(stated, bool)


def test_the_card_in_the_reference_is_valid_and_names_every_figure_and_section(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "card.md").read_text(encoding="utf-8")
    example = text.split("```json\n")[1].split("```")[0]
    path = tmp_path / "card.json"
    path.write_text(example, encoding="utf-8")
    assert SetupCard.load(path).context == 65536
    for part, figures in FIGURES.items():
        assert f"| {part} | {', '.join(figures)} |" in text
    fields = {field.alias or name for name, field in SetupCard.model_fields.items()}
    assert [name for name in fields if f"`{name}`" not in text] == []
