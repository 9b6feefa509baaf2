"""Engine: requests in, completions out. A step is three calls: schedule, execute, update."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from infer.engine.attention import ATTENTION_NAME, probe_layers, register
from infer.engine.batch import build_batch
from infer.engine.beam_generation import BeamGeneration
from infer.engine.cache_tiers import make_cache_manager, open_disk_cache
from infer.engine.cost_model import typical_costs
from infer.engine.errors import ConfigError, RequestError
from infer.engine.fitting import choose_backend, choose_device, fit_cache_sizes, fit_model_len, num_step_bytes
from infer.engine.fusion import fuse_kernels
from infer.engine.generation import GenerationContext
from infer.engine.host_cache import HostCache
from infer.engine.kv_cache import KVCacheSpec, allocate_kv_cache
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.kv_identity import kv_identity, weights_digest
from infer.engine.model_dtype import dtype_name
from infer.engine.model_loader import load_model
from infer.engine.model_runner import ModelRunner
from infer.engine.phase_timer import PhaseTimer
from infer.engine.prepack import prepack_linears
from infer.engine.request import Choice, Completion, Request
from infer.engine.sampled_generation import SampledGeneration
from infer.engine.sampler import Sampler
from infer.engine.sampling_params import from_generation_config
from infer.engine.scheduler import Pause, Scheduler
from infer.engine.seeding import derive_seed
from infer.engine.sequence import Sequence
from infer.engine.stats import EngineStats
from infer.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from infer.engine.config import EngineConfig
    from infer.engine.generation import Generation
    from infer.engine.sampler import SampledToken
    from infer.engine.sampling_params import SamplingParams
    from infer.engine.scheduler_output import SchedulerOutput
    from infer.engine.step_record import StepRecord


_logger = logging.getLogger(__name__)


class Engine:
    """Loads the model when it is made; `fit_cache` sizes the KV cache, at the latest when the first request arrives.

    Raises:
        ConfigError: a setting that cannot work with this model or machine.
        ModelError: the model cannot be found, read or run exactly.
    """

    def __init__(self, config: EngineConfig, report: Callable[[str], None] = lambda line: None) -> None:
        """`report` is told, a line at a time, what takes long: a download, a conversion."""
        register()
        self.config = config
        self._device = choose_device(config.device)
        loaded = load_model(
            config.model,
            revision=config.revision,
            dtype=config.dtype,
            device=self._device,
            attn_implementation=ATTENTION_NAME,
            report=report,
        )
        self.model_name = loaded.name
        self.tokenizer = Tokenizer(loaded.tokenizer, loaded.eos_token_ids)
        self.vocab_size: int = loaded.config.vocab_size
        self._model_config = loaded.config
        self._report = report
        self.default_sampling_params = from_generation_config(loaded.generation_config.to_diff_dict())
        layers = tuple(probe_layers(loaded.model, loaded.config))
        self.max_model_len, self._max_model_len_reason = fit_model_len(config, loaded.config)
        self._model = loaded.model
        self._dtype = loaded.dtype
        self._cache_spec = KVCacheSpec(layers, config.block_size, loaded.dtype, config.kv_cache_dtype)
        self._backend = choose_backend(config, self._device, self._cache_spec)
        self._cost_model = typical_costs(self._device.type, loaded.model, self._cache_spec)
        self._weights_digest = weights_digest(loaded.model) if config.kv_cache_dir is not None else ""
        # Kernels first: they are recognised by the layers as transformers made them.
        self.num_fused_kernels = fuse_kernels(loaded.model, self._backend) if config.fuse_kernels else 0
        self.num_prepacked_linears = prepack_linears(loaded.model) if config.prepack_linears else 0
        self._sampler = Sampler(
            vocab_size=self.vocab_size,
            eos_token_ids=self.tokenizer.eos_token_ids,
            encode=partial(self.tokenizer.encode, add_special_tokens=False),
        )
        self._warm_up()
        self._timer = PhaseTimer()
        self._generations: dict[int, Generation] = {}
        self._scheduler: Scheduler | None = None
        self._runner: ModelRunner | None = None
        self._num_finished = self._num_completion_tokens = 0

    def describe(self) -> list[str]:
        """What was loaded and on what it runs, a line each."""
        lines = [
            f"model {self.model_name}, {dtype_name(self._dtype)} on {self._device}, {self._backend.name} attention, "
            f"up to {self.max_model_len:,} tokens a row{self._max_model_len_reason}"
        ]
        if self._backend.fallback_reason:
            lines.append(self._backend.fallback_reason)
        return lines

    def check_sampling_params(self, params: SamplingParams) -> None:
        """What only the model can tell of parameters that are meant for many requests.

        Raises:
            ConfigError: they name a token that the model does not have.
        """
        try:
            self._sampler.row(params, prompt_token_ids=(), output_token_ids=(), seed=0)
        except RequestError as error:
            raise ConfigError(str(error)) from error

    def fit_cache(self, num_requests: int | None = None, max_request_tokens: int | None = None) -> str:
        """Allocate the KV cache for so many requests of at most so many tokens, prompt and output; None is not known.
        A request of several answers counts as so many.

        To be called once, before the first request. Returns what was taken, as a line.

        Raises:
            ConfigError: there is no memory for it.
        """
        assert self._scheduler is None, "the cache has been fitted already"
        config, spec = self.config, self._cache_spec
        num_blocks, num_host_blocks = fit_cache_sizes(
            config,
            spec,
            self._device,
            num_step_bytes=num_step_bytes(config, self._model_config, self._dtype),
            max_model_len=self.max_model_len,
            num_requests=num_requests,
            max_request_tokens=max_request_tokens,
        )
        # A sequence that outgrew the whole cache could neither go on nor be helped by preempting others.
        self.max_model_len = min(self.max_model_len, num_blocks * config.block_size)
        kv_cache = allocate_kv_cache(spec, num_blocks, self._backend, self._device)
        host_cache = HostCache(kv_cache, num_host_blocks)
        self._runner = ModelRunner(self._model, kv_cache, host_cache)
        identity = partial(kv_identity, config, self._model_config, self._weights_digest, kv_cache)
        disk_cache = open_disk_cache(config, identity, host_cache, self._report)
        manager = make_cache_manager(config, num_blocks, num_host_blocks, disk_cache, window=spec.window)
        self._scheduler = Scheduler(config, manager, self._cost_model)
        size = f"{num_blocks * config.block_size:,} tokens in {num_blocks * spec.num_bytes_per_block / 2**20:,.1f} MiB"
        blocks = f"{num_blocks:,} block{'' if num_blocks == 1 else 's'} of {config.block_size} tokens"
        return f"kv cache: {blocks}, {size} of {spec.cache_dtype_name}"

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self.fit_cache()
        assert self._scheduler is not None
        return self._scheduler

    def has_unfinished_requests(self) -> bool:
        return bool(self._generations)

    def add_request(self, request: Request) -> None:
        """Queue a request; it may be refused, and then the engine is as it was.

        Raises:
            RequestError: `empty_prompt`, `prompt_too_long`, or `invalid_input` for tokens the model does not have.
        """
        assert request.request_id not in self._generations, f"request id in use: {request.request_id}"
        scheduler = self.scheduler
        self._check_prompt(request.prompt_token_ids)
        kind = SampledGeneration if request.sampling_params.beam_width is None else BeamGeneration
        generation = kind(request, GenerationContext(self._sampler, self.tokenizer, scheduler, self.max_model_len))
        scheduler.add(generation.root)
        self._generations[request.request_id] = generation

    def abort_request(self, request_id: int) -> None:
        """Forget an unfinished request, in whatever state it is."""
        self._generations.pop(request_id).abort()

    @property
    def last_step(self) -> StepRecord | None:
        """What the last step decided; None before the first."""
        return None if self._scheduler is None else self._scheduler.last_step

    def pause(self, what: Pause = Pause.ALL) -> None:
        """Let the next steps leave out `what`; whoever steps meanwhile must see to it that there is something to do."""
        self.scheduler.pause = what

    def resume(self) -> None:
        self.scheduler.pause = Pause.NOTHING

    def step(self) -> list[Completion]:
        """Advance the unfinished requests by one step of the model. Returns those that it finished."""
        with self._timer.phase("schedule"):
            output = self.scheduler.schedule()
        sampled = self._execute(output)
        with self._timer.phase("update"):
            return self._update(output, sampled)

    def generate(
        self, prompts: Iterable[str | list[int]], sampling_params: SamplingParams | None = None, *, seed: int = 0
    ) -> list[Completion]:
        """Completions of texts or token ids, in their order; a refused one has its error. For use from Python.

        Each prompt draws from a seed of its own, derived from `seed` and its place. Not while the engine is paused.
        """
        assert self.scheduler.pause is Pause.NOTHING, "the engine is paused: it would never end"
        params = sampling_params or self.default_sampling_params
        completions: dict[int, Completion] = {}
        for number, prompt in enumerate(prompts):
            try:
                ids = self.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
                self.add_request(Request(number, tuple(ids), params, derive_seed(seed, number, 0)))
            except RequestError as error:
                nothing = Choice("", (), "error")
                completions[number] = Completion(number, (nothing,), 0, error_code=error.code, error=str(error))
        while self.has_unfinished_requests():
            completions |= {completion.request_id: completion for completion in self.step()}
        return [completions[number] for number in sorted(completions)]

    def stats(self) -> EngineStats:
        """A snapshot; cheap enough to be taken several times a second."""
        scheduler = self.scheduler
        manager = scheduler.kv_cache_manager
        return EngineStats(
            num_requests_running=len(scheduler.running),
            num_requests_waiting=len(scheduler.waiting) - manager.num_swapped,
            num_requests_swapped=manager.num_swapped,
            num_requests_finished=self._num_finished,
            num_preemptions_total=scheduler.counters.num_preemptions,
            num_swaps_total=scheduler.counters.num_swaps,
            num_blocks_to_host_total=scheduler.counters.num_blocks_to_host,
            num_blocks_from_host_total=scheduler.counters.num_blocks_from_host,
            num_blocks=manager.pool.num_blocks,
            block_size=manager.block_size,
            block_states=manager.pool.block_states(),
            prefix_cache_queries=manager.prefix_cache_queries,
            prefix_cache_hits=manager.prefix_cache_hits.total(),
            prefix_cache_hits_by_tier=dict(manager.prefix_cache_hits),
            prompt_tokens_total=scheduler.counters.prompt_tokens,
            completion_tokens_total=self._num_completion_tokens,
            tokens_wasted_total=scheduler.counters.tokens_wasted,
            num_steps=scheduler.num_steps,
            seconds=dict(self._timer.seconds),
        )

    def _warm_up(self) -> None:
        """Run one token through the network: what is compiled at first use is part of loading, not of the run."""
        block_size = self.config.block_size
        scheduler = Scheduler(self.config, KVCacheManager(1, block_size, enable_prefix_caching=False))
        scheduler.add(Sequence(Request(0, (0,), self.default_sampling_params)))
        kv_cache = allocate_kv_cache(self._cache_spec, 1, self._backend, self._device)
        runner = ModelRunner(self._model, kv_cache, HostCache(kv_cache, 0))
        runner.execute(build_batch(scheduler.schedule(), block_size, self._device))

    def _execute(self, output: SchedulerOutput) -> list[tuple[Sequence, list[SampledToken]]]:
        """Run the plan. Returns what was sampled for each sequence that has reached its last token."""
        assert self._runner is not None
        with self._timer.phase("execute"):
            self._runner.copy_before(output)
        if not output.scheduled:
            return []
        with self._timer.phase("prepare"):
            batch = build_batch(output, self.config.block_size, self._device)
        with self._timer.phase("execute"):
            logits = self._runner.execute(batch)
            self._runner.copy_after(output)
        with self._timer.phase("sample"):
            return self._sample(logits, batch.sampling)

    def _sample(self, logits: torch.Tensor, sequences: Iterable[Sequence]) -> list[tuple[Sequence, list[SampledToken]]]:
        """`logits` has a row for each of `sequences`, from which several tokens may be drawn."""
        wanted = [(each, self._generations[each.request_id].sampling_rows(each)) for each in sequences]
        rows = [row for _, rows in wanted for row in rows]
        if not rows:
            return []
        if len(rows) > len(wanted):
            logits = logits[[index for index, (_, rows) in enumerate(wanted) for _ in rows]]
        sampled = iter(self._sampler.sample(logits, rows))
        return [(sequence, list(islice(sampled, len(rows)))) for sequence, rows in wanted]

    def _update(self, output: SchedulerOutput, sampled: list[tuple[Sequence, list[SampledToken]]]) -> list[Completion]:
        self.scheduler.update(output)
        _logger.debug("%s", self.scheduler.last_step)
        completions = []
        for sequence, tokens in sampled:
            generation = self._generations.get(sequence.request_id)
            if generation is None:
                # Of a request that failed by another of its sequences.
                continue
            num_before = generation.num_generated_tokens
            completion = generation.accept(sequence, tokens)
            self._num_completion_tokens += generation.num_generated_tokens - num_before
            if completion is not None:
                del self._generations[sequence.request_id]
                completions.append(completion)
        self._num_finished += len(completions)
        return completions

    def _check_prompt(self, token_ids: tuple[int, ...]) -> None:
        if not token_ids:
            raise RequestError("empty_prompt", "the prompt has no tokens")
        if not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            raise RequestError("invalid_input", f"token ids must be from 0 to {self.vocab_size - 1}")
        num_tokens = len(token_ids)
        if num_tokens >= self.max_model_len:
            raise RequestError(
                "prompt_too_long",
                f"the prompt has {num_tokens:,} tokens, "
                f"and at most {self.max_model_len - 1:,} leave room for an answer",
            )
