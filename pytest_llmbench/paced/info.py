"""The answers that describe the server: /props, /v1/models, /slots, /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.paced.shapes import BUILD, generation_settings

if TYPE_CHECKING:
    from pytest_llmbench.paced.run import Run
    from pytest_llmbench.paced.slots import Slots

_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(slots=True)
class Counters:
    """What /metrics adds up. Times in seconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_s: float = 0.0
    predicted_tokens: int = 0
    predicted_steps: int = 0
    predicted_s: float = 0.0
    longest: int = 0

    def add(self, run: Run, predicted: int) -> None:
        if run.schedule is None or not predicted:
            return
        first, last = run.schedule.release(0), run.schedule.release(predicted - 1)
        self.prompt_tokens += run.processed
        self.cached_tokens += run.cache_n
        self.prompt_s += (first - run.schedule.slot_ns) / 1e9
        self.predicted_tokens += predicted
        self.predicted_steps += predicted - 1
        self.predicted_s += (last - first) / 1e9
        self.longest = max(self.longest, len(run.ask.prompt_ids) + predicted - 1)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the server says about itself. n_ctx: per slot."""

    model: str
    model_path: str
    n_ctx: int
    n_slots: int
    n_ctx_train: int
    metrics: bool
    slots: bool
    overrides: dict[str, Any]


def props(who: Identity) -> dict[str, Any]:
    """/props, with the pace's overrides merged in; ``n_ctx`` there means the one that /props gives per slot."""
    data: dict[str, Any] = {
        "default_generation_settings": {"params": generation_settings(None), "n_ctx": who.n_ctx},
        "total_slots": who.n_slots,
        "model_alias": who.model,
        "model_ftype": "paced",
        "model_path": who.model_path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "<__media__>",
        "endpoint_slots": who.slots,
        "endpoint_props": False,
        "endpoint_metrics": who.metrics,
        "ui": False,
        "ui_settings": {},
        "chat_template": _TEMPLATE,
        "chat_template_caps": {
            "supports_object_arguments": False,
            "supports_parallel_tool_calls": False,
            "supports_preserve_reasoning": False,
            "supports_reasoning_effort": False,
            "supports_string_content": True,
            "supports_system_role": True,
            "supports_tool_calls": False,
            "supports_tools": False,
            "supports_typed_content": False,
        },
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "build_info": BUILD,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }
    overrides = dict(who.overrides)
    if "n_ctx" in overrides:
        overrides["default_generation_settings"] = {"n_ctx": overrides.pop("n_ctx")}
    return _merged(data, overrides)


def models(who: Identity, created: int) -> dict[str, Any]:
    """/v1/models."""
    details = {
        "parent_model": "", "format": "gguf", "family": "", "families": [""], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip
    meta = {
        "vocab_type": 2, "n_vocab": 512 + 128**4, "n_ctx": who.n_ctx, "n_ctx_train": who.n_ctx_train, "n_embd": 64,
        "n_params": 1000, "size": Path(who.model_path).stat().st_size, "ftype": "paced",
    }  # fmt: skip
    old = {
        "name": who.model, "model": who.model, "modified_at": "", "size": "", "digest": "", "type": "model",
        "description": "", "tags": [""], "capabilities": ["completion"], "parameters": "", "details": details,
    }  # fmt: skip
    one = {
        "id": who.model, "aliases": [who.model], "tags": [], "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]}, "created": created,
        "owned_by": "llamacpp", "meta": meta,
    }  # fmt: skip
    return {"models": [old], "object": "list", "data": [one]}


def slots_state(who: Identity, slots: Slots) -> list[dict[str, Any]]:
    """/slots: a slot shows the request it works on, or its last one."""
    out = []
    for slot in slots.slots:
        data: dict[str, Any] = {
            "id": slot.id, "n_ctx": who.n_ctx, "speculative": False, "is_processing": slot.run is not None,
        }  # fmt: skip
        run = slot.run or slot.last
        if run is not None:
            decoded = run.record.predicted_n
            limit = run.ask.limit
            params = {
                k: v
                for k, v in generation_settings(run.ask).items()
                if k not in ("dry_sequence_breakers", "stop", "logit_bias", "grammar", "grammar_lazy",
                             "grammar_triggers", "preserved_tokens")
            }  # fmt: skip
            data |= {
                "id_task": run.number, "n_prompt_tokens": len(run.ask.prompt_ids) + max(0, decoded - 1),
                "n_prompt_tokens_processed": run.processed, "n_prompt_tokens_cache": run.cache_n, "params": params,
                "next_token": [{
                    "has_next_token": slot.run is not None, "has_new_line": False,
                    "n_remain": -1 if limit is None else limit - decoded, "n_decoded": decoded,
                }],
            }  # fmt: skip
        out.append(data)
    return out


def metrics(c: Counters, slots: Slots) -> str:
    """/metrics in Prometheus text."""
    rate = (
        c.prompt_tokens / c.prompt_s if c.prompt_s else 0.0,
        c.predicted_steps / c.predicted_s if c.predicted_s else 0.0,
    )
    counters: list[tuple[str, str, float]] = [
        ("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", c.prompt_tokens),
        ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", c.cached_tokens),
        ("prompt_seconds_total", "Total time spent processing prompts", c.prompt_s),
        ("tokens_predicted_total", "Number of generation tokens processed", c.predicted_tokens),
        ("tokens_predicted_seconds_total", "Total time spent generating tokens", c.predicted_s),
        ("n_decode_total", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
         c.predicted_tokens),
        ("n_tokens_max", "Largest observed sequence length (prompt + generation)", c.longest),
        ("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", 0),
        ("spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model", 0),
        ("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", 0),
    ]  # fmt: skip
    gauges: list[tuple[str, str, float]] = [
        ("prompt_tokens_seconds", "Average prompt throughput in tokens/s", rate[0]),
        ("predicted_tokens_seconds", "Average generation throughput in tokens/s", rate[1]),
        ("requests_processing", "Number of requests processing", len(slots.running())),
        ("requests_deferred", "Number of requests deferred", len(slots.waiting)),
        (
            "n_busy_slots_per_decode",
            "Average number of busy slots per llama_decode() call",
            float(bool(c.predicted_tokens)),
        ),
    ]
    return "".join(
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value:g}\n"
        for kind, items in (("counter", counters), ("gauge", gauges))
        for name, text, value in items
    )


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        known = out.get(key)
        out[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return out
