"""Engine: requests in, completions out. A step is three calls: schedule, execute, update."""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from infer.engine.batch import build_batch
from infer.engine.beam_generation import BeamGeneration
from infer.engine.cache_tiers import make_cache_manager, open_disk_cache
from infer.engine.draft_model import load_draft_model, spec_of_both
from infer.engine.draft_model_proposer import DraftModelProposer
from infer.engine.errors import ConfigError, RequestError
from infer.engine.fitting import choose_device, fit_cache_sizes, fit_model_len, num_step_bytes
from infer.engine.generation import GenerationContext
from infer.engine.host_cache import HostCache
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.kv_identity import kv_identity
from infer.engine.model_dtype import dtype_name
from infer.engine.model_runner import ModelRunner
from infer.engine.network import load_network
from infer.engine.ngram_proposer import NgramProposer
from infer.engine.phase_timer import PhaseTimer
from infer.engine.request import Choice, Completion, Request, check_prompt
from infer.engine.sampled_generation import SampledGeneration
from infer.engine.sampler import Sampler
from infer.engine.sampling_params import from_generation_config
from infer.engine.scheduler import Pause, Scheduler
from infer.engine.seeding import derive_seed
from infer.engine.sequence import Sequence
from infer.engine.speculative import NoSpeculation, make_speculation
from infer.engine.stats import EngineStats
from infer.engine.step_sampling import sample_runs
from infer.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from infer.engine.config import EngineConfig
    from infer.engine.generation import Generation
    from infer.engine.sampling_params import SamplingParams
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.scheduler_output import SchedulerOutput
    from infer.engine.speculative import Proposer, Run, Speculation
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
        self.config = config
        self._report = report
        self.network = load_network(config.model, config, choose_device(config.device), report, config.revision)
        loaded = self.network.loaded
        self.model_name = loaded.name
        self.tokenizer = Tokenizer(loaded.tokenizer, loaded.eos_token_ids)
        self.vocab_size: int = loaded.config.vocab_size
        self.default_sampling_params = from_generation_config(loaded.generation_config.to_diff_dict())
        self.max_model_len, self._max_model_len_reason = fit_model_len(config, loaded.config)
        self._draft_model = load_draft_model(config, self.network.device, loaded.tokenizer.get_vocab(), report)
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
        self._speculation: Speculation = NoSpeculation()
        self._num_finished = self._num_completion_tokens = 0

    def describe(self) -> list[str]:
        """What was loaded and on what it runs, a line each."""
        network = self.network
        kind = f"{dtype_name(network.loaded.dtype)} on {network.device}, {network.backend.name} attention"
        length = f"up to {self.max_model_len:,} tokens a row{self._max_model_len_reason}"
        lines = [f"model {self.model_name}, {kind}, {length}"]
        if self._draft_model is not None:
            lines.append(f"drafts by {self._draft_model.loaded.name}")
        if network.backend.fallback_reason:
            lines.append(network.backend.fallback_reason)
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
        config, network, spec = self.config, self.network, self.network.cache_spec
        num_blocks, num_host_blocks = fit_cache_sizes(
            config,
            spec_of_both(spec, self._draft_model),
            network.device,
            num_step_bytes=num_step_bytes(config, network.config, network.loaded.dtype),
            max_model_len=self.max_model_len,
            num_requests=num_requests,
            max_request_tokens=max_request_tokens,
        )
        # A sequence that outgrew the whole cache could neither go on nor be helped by preempting others.
        self.max_model_len = min(self.max_model_len, num_blocks * config.block_size)
        kv_cache = network.allocate_kv_cache(num_blocks)
        host_cache = HostCache(kv_cache, num_host_blocks)
        self._runner = ModelRunner(network.model, kv_cache, host_cache)
        identity = partial(kv_identity, config, network.config, network.weights_digest, kv_cache)
        disk_cache = open_disk_cache(config, identity, host_cache, self._report)
        manager = make_cache_manager(config, num_blocks, num_host_blocks, disk_cache, window=spec.window)
        self._scheduler = Scheduler(config, manager, network.cost_model)
        self._speculation = make_speculation(config, self._make_proposer(num_blocks))
        return f"kv cache: {spec.describe(num_blocks)}"

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
        check_prompt(request.prompt_token_ids, self.vocab_size, self.max_model_len)
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
        with self._timer.phase("draft"):
            self._speculation.propose(self.scheduler.running)
        begin = perf_counter()
        with self._timer.phase("schedule"):
            output = self.scheduler.schedule()
        runs = self._execute(output)
        with self._timer.phase("update"):
            completions = self._update(output, runs)
        self._speculation.observe(runs, output.num_scheduled_tokens, perf_counter() - begin)
        return completions

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
        # A request counts once, however many of its sequences run or wait.
        running = {each.request_id for each in scheduler.running}
        swapped = {each.request_id for each in scheduler.waiting if each.host_blocks} - running
        waiting = {each.request_id for each in scheduler.waiting} - running - swapped
        return EngineStats(
            num_requests_running=len(running),
            num_requests_waiting=len(waiting),
            num_requests_swapped=len(swapped),
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
            draft_tokens_total=scheduler.counters.draft_tokens,
            accepted_tokens_total=scheduler.counters.accepted_tokens,
            num_steps=scheduler.num_steps,
            seconds=dict(self._timer.seconds),
        )

    def _make_proposer(self, num_blocks: int) -> Proposer:
        if self._draft_model is None:
            return NgramProposer(self.config.prompt_lookup_min, self.config.prompt_lookup_max)
        return DraftModelProposer(self._draft_model, num_blocks, self.config, self._sampler, self._next_row)

    def _next_row(self, sequence: Sequence) -> SamplingRow:
        return self._generations[sequence.request_id].sampling_rows(sequence)[0]

    def _warm_up(self) -> None:
        """Run one token through the network: what is compiled at first use is part of loading, not of the run."""
        block_size = self.config.block_size
        scheduler = Scheduler(self.config, KVCacheManager(1, block_size, enable_prefix_caching=False))
        scheduler.add(Sequence(Request(0, (0,), self.default_sampling_params)))
        runner = ModelRunner(self.network.model, self.network.allocate_kv_cache(1))
        runner.execute(build_batch(scheduler.schedule(), block_size, self.network.device))

    def _execute(self, output: SchedulerOutput) -> dict[Sequence, Run]:
        """Run the plan. Returns what was sampled for each sequence that has reached its last token."""
        assert self._runner is not None
        with self._timer.phase("execute"):
            self._runner.copy_before(output)
        if not output.scheduled:
            return {}
        with self._timer.phase("prepare"):
            batch = build_batch(output, self.config.block_size, self.network.device)
        with self._timer.phase("execute"):
            logits = self._runner.execute(batch)
            self._runner.copy_after(output)
        with self._timer.phase("sample"):
            rows = {each: self._generations[each.request_id].sampling_rows(each) for each in batch.sampling}
            return sample_runs(self._sampler, logits, rows)

    def _update(self, output: SchedulerOutput, runs: dict[Sequence, Run]) -> list[Completion]:
        self.scheduler.update(output, {each: len(run) - 1 for each, run in runs.items() if each.draft_token_ids})
        _logger.debug("%s", self.scheduler.last_step)
        completions = []
        for sequence, run in runs.items():
            generation = self._generations.get(sequence.request_id)
            if generation is None:
                # Of a request that failed by another of its sequences.
                continue
            num_before = generation.num_generated_tokens
            completion = generation.accept(sequence, run)
            self._num_completion_tokens += generation.num_generated_tokens - num_before
            if completion is not None:
                del self._generations[sequence.request_id]
                completions.append(completion)
        self._num_finished += len(completions)
        return completions
