"""The flags of llama-server: aliases, negations, and how many values follow. Pure.

Taken from ``llama-server --help`` of mid and late 2026 builds, plus names that older builds knew. A build's own parser
is the judge; this table only says which tokens belong together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: every spelling, the spellings that switch it off, and the number of values.

    values: 0, 1 or 2; None where a value may follow (``-fa`` was bare once, or a flag that is not in the table).
    """

    names: tuple[str, ...]
    off: tuple[str, ...] = ()
    values: int | None = None


# One option a line. "|" separates the spellings that switch it off.
_SWITCHES = """
-h --help --usage
--version
-cl --cache-list
--swa-full
--perf | --no-perf
-e --escape | --no-escape
-kvo --kv-offload | -nkvo --no-kv-offload
--repack | -nr --no-repack
--no-host
--mmap | --no-mmap
--mlock
-dio --direct-io | -ndio --no-direct-io
--list-devices
-cmoe --cpu-moe
--check-tensors
--op-offload | --no-op-offload
--log-disable
--log-jsonl | --no-log-jsonl
-v --verbose --log-verbose
--offline
--log-prefix | --no-log-prefix
--log-timestamps | --no-log-timestamps
--ignore-eos
-bs --backend-sampling
--spec-draft-cpu-moe -cmoed --cpu-moe-draft
--spec-draft-backend-sampling | --no-spec-draft-backend-sampling
-kvu --kv-unified | -no-kvu --no-kv-unified
--cache-idle-slots | --no-cache-idle-slots
--context-shift | --no-context-shift
-sp --special
--warmup | --no-warmup
--spm-infill
-cb --cont-batching | -nocb --no-cont-batching
--mmproj-auto | --no-mmproj --no-mmproj-auto
--mmproj-offload | --no-mmproj-offload
--reuse-port
--cors-credentials | --no-cors-credentials
--ui-mcp-proxy --webui-mcp-proxy | --no-ui-mcp-proxy --no-webui-mcp-proxy
-ag --agent | -no-ag --no-agent
--ui --webui | --no-ui --no-webui
--embedding --embeddings
--rerank --reranking
--cache-prompt | --no-cache-prompt
--metrics
--props
--slots | --no-slots
--models-autoload | --no-models-autoload
--jinja | --no-jinja
--reasoning-preserve | --no-reasoning-preserve
--skip-chat-parsing | --no-skip-chat-parsing
--prefill-assistant | --no-prefill-assistant
--lora-init-without-apply
--spec-default
"""

_WITH_VALUE = """
-t --threads
-tb --threads-batch
-C --cpu-mask
-Cr --cpu-range
--cpu-strict
--prio
--poll
-Cb --cpu-mask-batch
-Crb --cpu-range-batch
--cpu-strict-batch
--prio-batch
--poll-batch
-c --ctx-size
-n --predict --n-predict
-b --batch-size
-ub --ubatch-size
--keep
--rope-scaling
--rope-scale
--rope-freq-base
--rope-freq-scale
--yarn-orig-ctx
--yarn-ext-factor
--yarn-attn-factor
--yarn-beta-slow
--yarn-beta-fast
-ctk --cache-type-k
-ctv --cache-type-v
-dt --defrag-thold
--rpc
-lm --load-mode
-lzm --lazy-mode
--numa
-dev --device
-ot --override-tensor
-ncmoe --n-cpu-moe
-ncffn --n-cpu-ffn
-ngl --gpu-layers --n-gpu-layers
-sm --split-mode
-ts --tensor-split
-mg --main-gpu
-fit --fit
-fitt --fit-target
-fitc --fit-ctx
--override-kv
--lora
--lora-scaled
--control-vector
--control-vector-scaled
-m --model
-mu --model-url
-dr --docker-repo
-hf -hfr --hf-repo
-hff --hf-file
-hft --hf-token
--log-file
--log-colors
-lv --verbosity --log-verbosity
--samplers
-s --seed
--sampler-seq --sampling-seq
--temp --temperature
--top-k
--top-p
--min-p
--top-nsigma --top-n-sigma
--xtc-probability
--xtc-threshold
--typical --typical-p
--repeat-last-n
--repeat-penalty
--presence-penalty
--frequency-penalty
--dry-multiplier
--dry-base
--dry-allowed-length
--dry-penalty-last-n
--dry-sequence-breaker
--adaptive-target
--adaptive-decay
--dynatemp-range
--dynatemp-exp
--mirostat
--mirostat-lr
--mirostat-ent
-l --logit-bias
--grammar
--grammar-file
-j --json-schema
-jf --json-schema-file
--spec-draft-hf -hfd -hfrd --hf-repo-draft
--spec-draft-threads -td --threads-draft
--spec-draft-threads-batch -tbd --threads-batch-draft
--spec-draft-cpu-mask -Cd --cpu-mask-draft
--spec-draft-cpu-range -Crd --cpu-range-draft
--spec-draft-cpu-strict --cpu-strict-draft
--spec-draft-prio --prio-draft
--spec-draft-poll --poll-draft
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft
--spec-draft-prio-batch --prio-batch-draft
--spec-draft-poll-batch --poll-batch-draft
--spec-draft-type-k -ctkd --cache-type-k-draft
--spec-draft-type-v -ctvd --cache-type-v-draft
--spec-draft-override-tensor -otd --override-tensor-draft
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft
--spec-draft-n-max
--spec-draft-n-min
--spec-synth-len
--spec-synth-rates
--spec-draft-p-split --draft-p-split
--spec-draft-p-min --draft-p-min
--spec-draft-sampling
--spec-draft-device -devd --device-draft
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft
--spec-draft-model -md --model-draft
--spec-type
--spec-ngram-mod-n-min
--spec-ngram-mod-n-max
--spec-ngram-mod-n-match
--spec-ngram-simple-size-n
--spec-ngram-simple-size-m
--spec-ngram-simple-min-hits
--spec-ngram-map-k-size-n
--spec-ngram-map-k-size-m
--spec-ngram-map-k-min-hits
--spec-ngram-map-k4v-size-n
--spec-ngram-map-k4v-size-m
--spec-ngram-map-k4v-min-hits
--draft --draft-n --draft-max
--draft-min --draft-n-min
--spec-ngram-size-n
--spec-ngram-size-m
--spec-ngram-min-hits
-cd --ctx-size-draft
-lcs --lookup-cache-static
-lcd --lookup-cache-dynamic
--kv-unified-per-slot
-ctxcp --ctx-checkpoints --swa-checkpoints
-cms --checkpoint-min-step
-cram --cache-ram
-r --reverse-prompt
--pooling
-np --parallel
-mm --mmproj
-mmu --mmproj-url
-mmdev --mmproj-device
--image-min-tokens
--image-max-tokens
--mtmd-batch-max-tokens
--video-fps
--video-timestamp-interval
--video-ffmpeg-dir
-a --alias
--tags
--embd-normalize
--host
--port
--path
--cors-origins
--cors-methods
--cors-headers
--api-prefix
--ui-config --webui-config
--ui-config-file --webui-config-file
--tools
--tools-runtime
--mcp-servers-config
--mcp-servers-json
--api-key
--api-key-file
--ssl-key-file
--ssl-cert-file
--chat-template-kwargs
-to --timeout
--sse-ping-interval
--threads-http
--cache-reuse
--slot-save-path
--media-path
--models-dir
--models-preset
--models-max
--reasoning-format
-rea --reasoning
--reasoning-effort
--reasoning-budget
--reasoning-budget-message
--chat-template
--chat-template-file
-sps --slot-prompt-similarity
--sleep-idle-seconds
--log-prompts-dir
"""


def _parse(table: str, values: int) -> list[Flag]:
    flags = []
    for line in table.strip().splitlines():
        on, _, off = line.partition("|")
        flags.append(Flag(tuple(on.split()), tuple(off.split()), values))
    return flags


FLAGS: tuple[Flag, ...] = (
    *_parse(_SWITCHES, 0),
    *_parse(_WITH_VALUE, 1),
    Flag(("-fa", "--flash-attn")),
    Flag(("--control-vector-layer-range",), values=2),
)

BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in (*flag.names, *flag.off)}


def canonical(name: str) -> str:
    """The spelling that the table uses: llama-server reads ``_`` in a ``--`` name as ``-``."""
    return name.replace("_", "-") if name.startswith("--") else name


def values_after(flag: Flag, words: Sequence[str], at: int) -> int:
    """How many words behind the flag at ``at`` are its values, as far as there are so many."""
    if flag.values is not None:
        return flag.values
    following = words[at + 1] if at + 1 < len(words) else "-"
    return 0 if following.startswith("-") and not _is_number(following) else 1


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None
