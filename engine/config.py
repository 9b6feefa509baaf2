"""EngineConfig: every setting of the engine, checked once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infer.engine.errors import ConfigError

_MAX_BLOCK_SIZE = 4096
"""Greater ones share no prefix and waste half of a block a sequence."""

PreemptionMode = Literal["auto", "recompute", "swap"]
_AT_LEAST_ONE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "max_num_draft_tokens",
)

PreemptionVictim = Literal["last", "least-waste"]
Speculative = Literal["auto", "always", "off"]
DType = Literal["auto", "bfloat16", "float16", "float32"]
KVCacheDType = Literal["auto", "int8", "fp8"]
Quantization = Literal["auto", "none", "int8"]
LinearBackend = Literal["auto", "cpu", "onednn"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Names are vLLM's where it has the setting. None means: fitted to the model, the memory and the data at the start.

    Raises:
        ConfigError: a value outside its range, or two that contradict each other.
    """

    model: str = "smollm2-135m"
    revision: str | None = None
    dtype: DType = "auto"
    """`auto` is the checkpoint's own type, float32 where the device has no fast arithmetic in it."""
    quantization: Quantization = "auto"
    """`auto` runs weights as the checkpoint has them, `none` makes numbers of quantised ones. `int8` multiplies int8
    weights, scaled by output channel, with int8 hidden states, scaled by token: an answer still depends on its own row
    only. Done after loading, in every `nn.Linear`."""
    device: str = "auto"
    """`auto` is cuda where there is one, else cpu."""
    attention_backend: Literal["auto", "reference", "cpu", "triton"] = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    """`auto` stores keys and values as they are; the others round them, each head of each token with its own scale, so
    that an answer still depends on its own row only."""
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    """Most prompt tokens one sequence is given in one step; 0 is no limit."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    block_size: int = 16
    num_blocks: int | None = None
    """Overrides the fitted size of the cache."""
    memory_utilization: float = 0.9
    """Share of the memory (of the GPU, or of what is available to the process) that the run may fill."""
    max_num_partial_prefills: int = 0
    """Most prompts that a step may leave unfinished; 0 is no limit."""
    max_long_partial_prefills: int = 0
    """Of these, most that are longer than `long_prefill_token_threshold`, so that short prompts pass; 0 is no limit."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    preemption_mode: PreemptionMode = "auto"
    """What becomes of the tokens of a preempted sequence: computed again, or copied to host memory and back; `auto` is
    what costs less."""
    swap_space: float | None = None
    """GiB of host memory for swapped sequences and evicted prefixes. None is up to 4, of what the cache leaves: where
    memory is short, the cache itself makes better use of it."""
    enable_host_cache: bool = False
    """Keep prefixes that leave the device in the swap space. Every evicted block is copied, which pays where prefixes
    come back."""
    kv_cache_dir: str | None = None
    """Where to keep the blocks of all prompts on disk, for later runs. Needs the host cache, and so has it on."""
    kv_cache_dir_size: float = 10.0
    """Most GiB of it."""
    enable_admission_control: bool = True
    """Begin a sequence only where there will be room for it until it ends, as far as can be foreseen."""
    preemption_victim: PreemptionVictim = "last"
    """Of those that may have to give way: who came last, or who loses least work."""
    speculative: Speculative = "auto"
    """When drafts are computed along: where they are expected to save time, always, or never."""
    num_speculative_tokens: int = 4
    """Most drafts of a sequence in a step."""
    speculative_model: str | None = None
    """A smaller model of the same vocabulary that proposes the drafts; None looks them up in prompt and answer."""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    """Drafts continue an earlier occurrence of the last tokens, at least and at most so many of them."""
    max_num_draft_tokens: int = 64
    """Most drafts in a step. They are part of `max_num_batched_tokens` too, which bounds what enters the model and so,
    since nothing advances by more than it enters, also what a step advances; this bounds the rows of logits that a step
    has beyond one a sequence."""
    row_timeout: float | None = None
    """Seconds after which a request is given up, counted from when its first token is computed. None is no limit."""
    prepack_linears: bool = True
    """CPU only: weights laid out once for the matrix kernels instead of at every call, and siblings merged."""
    linear_backend: LinearBackend = "auto"
    """Whose matrix kernels these are: ours or oneDNN's; `auto` is the faster on this CPU."""
    fuse_kernels: bool = True
    """Norms, gated and Llama-like layers as fewer kernels, on a CPU and on CUDA."""
    async_scheduling: bool | None = None
    """Plan the next step while one runs, and read its tokens when the next is under way. None is where it saves time,
    on CUDA, and drafts are not asked for: these have to know the last token. Answers do not depend on it."""
    enforce_eager: bool = False
    """On CUDA, launch decode steps kernel by kernel instead of as one recorded graph."""
    shared_prefix_attention: bool = True
    """Where sequences of a step share their first blocks, attend to these once for all of them."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.block_size > _MAX_BLOCK_SIZE:
            raise ConfigError(f"block_size must be at most {_MAX_BLOCK_SIZE}: {self.block_size}")
        for name in ("max_model_len", "num_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1: {value}")
        for name in ("long_prefill_token_threshold", "max_num_partial_prefills", "max_long_partial_prefills"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative: {getattr(self, name)}")
        if self.max_long_partial_prefills and not self.long_prefill_token_threshold:
            raise ConfigError("max_long_partial_prefills needs long_prefill_token_threshold, which says what is long")
        if self.long_prefill_token_threshold and not self.enable_chunked_prefill:
            raise ConfigError("long_prefill_token_threshold needs chunked prefill", hint="leave chunked prefill on")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ConfigError(
                f"prompt_lookup_max must be at least prompt_lookup_min, {self.prompt_lookup_min}: "
                f"{self.prompt_lookup_max}"
            )
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ConfigError(f"memory_utilization must be above 0 and at most 1: {self.memory_utilization}")
        # Negated, so that NaN is refused, too.
        if self.row_timeout is not None and not 0.0 < self.row_timeout < float("inf"):
            raise ConfigError(f"row_timeout must be above 0: {self.row_timeout}")
        if self.async_scheduling and (self.speculative == "always" or self.speculative_model is not None):
            raise ConfigError(
                "async_scheduling cannot be had with drafts, which have to know the last token",
                hint="leave async scheduling out, or use --speculative off",
            )
        self._check_tiers()
        longest = self.max_model_len or 0
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < longest:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_model_len without chunked prefill: "
                f"{self.max_num_batched_tokens} < {longest}",
                hint="raise --max-num-batched-tokens, or leave chunked prefill on",
            )

    @property
    def keeps_prefixes_on_host(self) -> bool:
        return self.enable_host_cache or self.kv_cache_dir is not None

    def overlaps_steps_on(self, device_type: str) -> bool:
        """Whether steps overlap on such a device. No drafts are proposed there."""
        if self.async_scheduling is not None:
            return self.async_scheduling
        return device_type == "cuda" and self.speculative != "always" and self.speculative_model is None

    def records_decodes_by(self, backend_name: str) -> bool:
        """Whether decode steps are recorded as graphs: where all kernels can be, and nobody objects."""
        return backend_name == "triton" and not self.enforce_eager

    def _check_tiers(self) -> None:
        if self.swap_space is not None and not 0 <= self.swap_space < float("inf"):
            raise ConfigError(f"swap_space must not be negative: {self.swap_space}")
        if not 0 < self.kv_cache_dir_size < float("inf"):
            raise ConfigError(f"kv_cache_dir_size must be above 0: {self.kv_cache_dir_size}")
        if self.kv_cache_dir == "":
            raise ConfigError("kv_cache_dir names no directory")
        for name in ("enable_host_cache", "kv_cache_dir"):
            if not getattr(self, name):
                continue
            if not self.enable_prefix_caching:
                raise ConfigError(f"{name} needs prefix caching", hint="leave prefix caching on")
            if self.swap_space == 0:
                raise ConfigError(f"{name} needs swap_space: prefixes pass through it", hint="leave --swap-space out")
        if self.preemption_mode == "swap" and self.swap_space == 0:
            raise ConfigError("preemption_mode swap needs swap_space", hint="leave --swap-space out")
