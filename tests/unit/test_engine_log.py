"""The engine's log: what each wording says, and that what is not there is None. Lines in the shape of real builds."""

from __future__ import annotations

import pytest

from pytest_llmbench.engine import log

PREFIXED = """\
# llmbench: start 1, command: llama-server -m a.gguf
0.00.007.526 I cmn  common_param: common_params_print_info: build 0 (unknown) with GNU 12.2.0 for Linux x86_64
0.00.438.232 I print_info: n_ctx_train           = 8192
0.00.452.559 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
0.00.454.983 I llama_context: n_ctx                 = 2048
0.00.454.984 I llama_context: n_ctx_seq             = 1024
0.00.454.987 I llama_context: flash_attn            = auto
0.00.454.987 I llama_context: kv_unified            = false
0.00.454.996 I llama_context: n_ctx_seq (1024) < n_ctx_train (8192) -- the full capacity will not be utilized
0.00.455.061 I llama_context:        CPU  output buffer size =     0.38 MiB
0.00.455.242 I llama_kv_cache:        CPU KV buffer size =    45.00 MiB
0.00.484.426 I llama_kv_cache: size =   45.00 MiB (  1024 cells,  30 layers,  2/2 seqs), K (q8_0):   22.50 MiB, V (f16):   22.50 MiB
0.00.486.276 I resolve_fused_ops: Flash Attention enabled
0.00.491.697 I sched_reserve:        CPU compute buffer size =    15.64 MiB
0.03.776.217 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'
0.03.776.275 I slot   load_model: id  0 | task -1 | new slot, n_ctx = 1024
0.03.849.441 I slot   operator(): id  1 | task 0 | new prompt, n_ctx_slot = 1024, n_keep = 0, task.n_tokens = 41
0.03.849.447 I slot   operator(): id  1 | task 0 | cached n_tokens = 5, memory_seq_rm [5, end)
0.24.851.703 I slot print_timing: id  1 | task 0 | prompt eval time =    2006.47 ms /    36 tokens (   48.94 ms per token,    20.43 tokens per second)
0.24.851.716 I slot print_timing: id  1 | task 0 |        eval time =   18995.76 ms /    39 tokens (  499.89 ms per token,     2.00 tokens per second)
0.24.851.717 I slot print_timing: id  1 | task 0 |       total time =   21002.23 ms /    80 tokens
0.24.874.417 I common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
0.24.874.447 I common_memory_breakdown_print: |   - Host               |                  152 =    92 +      45 +      15                |
"""


def test_a_prefixed_log_is_read() -> None:
    found = log.parse(PREFIXED)
    assert found.version == "0 (unknown)"
    assert (found.n_ctx, found.n_ctx_per_slot, found.n_ctx_train, found.n_slots) == (2048, 1024, 8192, 2)
    assert found.kv_unified is False
    assert found.cache_types == ("q8_0", "f16")
    assert found.flash_attention is True
    assert found.total_mib("weights") == {"CPU_Mapped": 92.10}
    assert found.total_mib("kv") == {"CPU": 45.0}
    assert found.total_mib("compute") == {"CPU": 15.64}
    assert found.total_mib("output") == {"CPU": 0.38}
    assert found.memory == (log.DeviceMemory("Host", None, None, 152, 92, 45, 15, None),)
    (request,) = found.requests
    assert (request.slot, request.task, request.prompt_tokens, request.cached_tokens) == (1, 0, 41, 5)
    assert (request.prompt_n, request.prompt_ms, request.predicted_n, request.predicted_ms) == (
        36,
        2006.47,
        39,
        18995.76,
    )


def test_what_is_not_there_is_none_and_named() -> None:
    found = log.parse("hello\n")
    assert found.n_ctx is None
    assert found.total_mib("kv") is None
    assert found.no_usable_gpu is None
    assert found.layers is None
    assert set(found.missing()) == {
        "version", "buffers", "n_ctx", "n_ctx_per_slot", "n_ctx_train", "n_slots", "kv_unified", "cache_types",
        "flash_attention", "layers", "no_usable_gpu", "memory", "requests", "drafts",
    }  # fmt: skip
    assert found.to_json()["not_in_the_log"] == list(found.missing())


def test_the_last_start_of_a_file_counts() -> None:
    again = PREFIXED.replace("n_slots = 2", "n_slots = 3").replace("= 45.00 MiB", "= 60.00 MiB")
    found = log.parse(PREFIXED + again)
    assert found.n_slots == 3
    assert [one.task for one in found.requests] == [0]


def test_gpu_lines_of_a_multi_gpu_build() -> None:
    found = log.parse(
        """\
build: 9999 (abcdef123) with cc
llm_load_tensors: offloaded 33/33 layers to GPU
llm_load_tensors:        CPU buffer size =  1640.62 MiB
llm_load_tensors:      CUDA0 buffer size =  5434.38 MiB
llm_load_tensors:      CUDA1 buffer size = 13989.53 MiB
llama_new_context_with_model: n_ctx      = 4096
llama_new_context_with_model: n_ctx_per_seq = 2048
llama_new_context_with_model: flash_attn = 0
llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB
llama_kv_cache_init:      CUDA1 KV buffer size =  3584.00 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     1.95 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   672.01 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   700.01 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =    56.11 MiB
"""
    )
    assert found.version == "9999 (abcdef123)"
    assert found.layers == (33, 33)
    assert found.total_mib("weights") == {"CPU": 1640.62, "CUDA0": 5434.38, "CUDA1": 13989.53}
    assert found.total_mib("kv") == {"CUDA0": 1536.0, "CUDA1": 3584.0}
    assert found.total_mib("compute") == {"CUDA0": 700.01}, "reserved anew: the last one holds"
    assert found.total_mib("recurrent") == {"CUDA0": 56.11}
    assert (found.n_ctx, found.n_ctx_per_slot) == (4096, 2048)
    assert found.flash_attention is False


def test_two_caches_on_one_device_add_up() -> None:
    found = log.parse(
        "llama_kv_cache: CPU KV buffer size =    12.00 MiB\nllama_kv_cache: CPU KV buffer size =    37.50 MiB\n"
    )
    assert found.total_mib("kv") == {"CPU": 49.5}


def test_a_build_without_gpu_says_so() -> None:
    assert log.parse("warning: no usable GPU found, --gpu-layers option will be ignored\n").no_usable_gpu is True


@pytest.mark.parametrize(
    ("lines", "on"),
    [
        ("llama_context: flash_attn            = enabled", True),
        ("llama_context: flash_attn    = 1", True),
        ("llama_context: flash_attn    = auto", None),
        ("llama_context: flash_attn    = auto\nllama_context: Flash Attention was auto, set to disabled", False),
    ],
)
def test_flash_attention_as_settled(lines: str, on: bool | None) -> None:  # noqa: FBT001
    assert log.parse(lines).flash_attention is on


def test_breakdown_of_gpus_and_a_rest_that_cannot_be() -> None:
    found = log.parse(
        """\
llama_memory_breakdown_print: | memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
llama_memory_breakdown_print: |   - CUDA0 (RTX 5060 Ti) |     1 =     1 + (    1 =     1 +       0 +       0) +           0 |
llama_memory_breakdown_print: | memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
llama_memory_breakdown_print: |   - CUDA0 (RTX 5060 Ti) | 15841 = 15630 + (15302 = 14736 +      72 +     493) + 17592186029324 |
llama_memory_breakdown_print: |   - MTL0 (Apple M5)     | 18186 = 10905 + (7280 =  6095 +     786 +     398) +           0 |
llama_memory_breakdown_print: |   - Host                |                   152 =    92 +      45 +      15                |
something else
"""
    )
    assert found.memory == (
        log.DeviceMemory("CUDA0 (RTX 5060 Ti)", 15841, 15630, 15302, 14736, 72, 493, None),
        log.DeviceMemory("MTL0 (Apple M5)", 18186, 10905, 7280, 6095, 786, 398, 0),
        log.DeviceMemory("Host", None, None, 152, 92, 45, 15, None),
    )


def test_drafts_and_the_draft_models_own_memory() -> None:
    found = log.parse(
        """\
0.01.354.022 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
0.01.356.665 I llama_context: n_ctx                 = 2048
0.01.357.003 I llama_kv_cache:        CPU KV buffer size =    45.00 MiB
0.07.891.482 I common_speculative_init_result: loading draft model 'draft.gguf'
0.08.162.938 I load_tensors:   CPU_Mapped model buffer size =    10.00 MiB
0.08.163.000 I llama_context: n_ctx                 = 512
0.08.164.812 I llama_kv_cache:        CPU KV buffer size =     5.00 MiB
0.47.566.293 I slot print_timing: id  0 | task 0 | prompt eval time =    6999.16 ms /    41 tokens (  170.71 ms per token)
0.47.566.301 I slot print_timing: id  0 | task 0 |        eval time =   28819.92 ms /    39 tokens (  758.42 ms per token)
0.47.566.322 I slot print_timing: id  0 | task 0 | draft acceptance = 0.93333 (   28 accepted /    30 generated), mean len =  3.80
0.47.566.322 I slot print_timing: id  0 | task 0 |      acc per pos = (1.000, 0.900, 0.900)
0.47.566.365 I spec common_specu: statistics     draft-simple: #calls(b,g,a) =    1     10     10, #gen drafts =     10, #acc drafts =    10, #gen tokens =     30, #acc tokens =    28, #mean acc len = 3.80, #acc rate/pos = (1.000, 0.900, 0.900), dur(b,g,a) = 0.031, 12857.435, 0.017 ms
"""
    )
    assert found.total_mib("weights", "model") == {"CPU_Mapped": 92.10}
    assert found.total_mib("weights", "draft") == {"CPU_Mapped": 10.0}
    assert found.total_mib("kv") == {"CPU": 50.0}, "without an owner: both"
    assert found.n_ctx == 2048, "not the draft model's"
    (request,) = found.requests
    assert (request.draft_generated, request.draft_accepted, request.mean_accepted_length) == (30, 28, 3.8)
    assert request.accepted_per_position == (1.0, 0.9, 0.9)
    (drafts,) = found.drafts
    assert (drafts.kind, drafts.steps, drafts.generated, drafts.accepted) == ("draft-simple", 10, 30, 28)
    assert drafts.mean_accepted_length == pytest.approx(1 + 28 / 10)
    assert drafts.accepted_per_position == (1.0, 0.9, 0.9)


def test_draft_wordings_of_other_builds() -> None:
    found = log.parse(
        """\
slot print_timing: id  0 | task 7 |
prompt eval time =     300.11 ms /    20 tokens (   15.01 ms per token)
       eval time =    2296.72 ms /   256 tokens (    8.97 ms per token)
draft acceptance rate = 0.57576 (  171 accepted /   297 generated)
statistics ngram_simple: #calls = 15, #gen drafts = 5, #acc drafts = 5, #gen tokens = 187, #acc tokens = 73
slot print_timing: id  1 | task 9 | draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)
"""
    )
    first, second = found.requests
    assert (first.task, first.prompt_n, first.predicted_n) == (7, 20, 256)
    assert (first.draft_accepted, first.draft_generated, first.mean_accepted_length) == (171, 297, None)
    assert (second.mean_accepted_length, second.accepted_per_position) == (2.92, (0.805, 0.632, 0.483))
    assert found.drafts[0].mean_accepted_length is None


@pytest.mark.parametrize(
    "line",
    [
        "slot   operator(): id  0 | task 4 | cached n_tokens = 26, memory_seq_rm [26, end)",
        "slot update_slots: id  0 | task 4 | n_tokens = 26, memory_seq_rm [26, end)",
        "slot update_slots: id  0 | task 4 | kv cache rm [26, end)",
        'INFO [   update_slots] kv cache rm [p0, end) | tid="1" timestamp=1 id_slot=0 id_task=4 p0=26',
    ],
)
def test_cached_tokens_in_every_wording(line: str) -> None:
    later = line.replace("26", "538")  # the same line again, when the next batch of this prompt begins
    (request,) = log.parse(f"{line}\n{later}\n").requests
    assert (request.task, request.cached_tokens) == (4, 26)
