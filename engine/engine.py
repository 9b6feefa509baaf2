"""Engine: requests in, completions out. A step is three calls: schedule, execute, update."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from infer.engine.beam_generation import BeamGeneration
from infer.engine.cache_tiers import make_cache_manager, open_disk_cache
from infer.engine.complete_all import complete_all
from infer.engine.deadlines import Deadlines
from infer.engine.draft_model import load_draft_model, spec_of_both
from infer.engine.draft_model_proposer import DraftModelProposer
from infer.engine.errors import ConfigError, EngineError, RequestError, describe
from infer.engine.failures import give_memory_back, is_out_of_memory
from infer.engine.fitting import choose_device, fit_cache_sizes, fit_model_len, num_step_bytes
from infer.engine.generation import GenerationContext
from infer.engine.host_cache import HostCache
from infer.engine.kernel_profile import KernelProfile
from infer.engine.kv_identity import kv_identity
from infer.engine.model_dtype import dtype_name
from infer.engine.model_runner import ModelRunner
from infer.engine.network import load_network
from infer.engine.ngram_proposer import NgramProposer
from infer.engine.open_requests import OpenRequests
from infer.engine.page_reserve import PageReserve
from infer.engine.phase_timer import PhaseTimer
from infer.engine.recovery import Recovery
from infer.engine.request import Completion, Request, check_prompt
from infer.engine.sampled_generation import SampledGeneration
from infer.engine.sampler import Sampler
from infer.engine.sampling_params import from_generation_config
from infer.engine.scheduler import Scheduler
from infer.engine.speculative import NoSpeculation, make_speculation
from infer.engine.stats import EngineStats, scheduler_figures
from infer.engine.step_executor import StepExecutor
from infer.engine.step_limits import Pause
from infer.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from infer.engine.config import EngineConfig
    from infer.engine.sampling_params import SamplingParams
    from infer.engine.speculative import Proposer, Speculation
    from infer.engine.step_record import StepRecord


_logger = logging.getLogger(__name__)


class Engine:
    """Loads the model when it is made; `fit_cache` sizes the KV cache, at the latest when the first request arrives.

    Raises:
        ConfigError: a setting that cannot work with this model or machine.
        ModelError: the model cannot be found, read or run exactly.
    """

    def __init__(
        self,
        config: EngineConfig,
        report: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`report` is told, a line at a time, what takes long, a download, a conversion, and what went wrong; `clock`
        gives the seconds that count for `row_timeout`."""
        self.config = config
        self._report = report
        device = choose_device(config.device)
        self._page_reserve = PageReserve(device)
        self.network = load_network(
            config.model, config, device, report, config.revision, on_weights=self._page_reserve.begin
        )
        loaded = self.network.loaded
        self.model_name = loaded.name
        self.tokenizer = Tokenizer(loaded.tokenizer, loaded.eos_token_ids)
        self.vocab_size: int = loaded.config.vocab_size
        self.default_sampling_params = from_generation_config(loaded.generation_config.to_diff_dict())
        self.max_model_len, self._max_model_len_reason = fit_model_len(config, loaded.config)
        self._most_model_len = self.max_model_len
        self._draft_model = load_draft_model(config, self.network.device, loaded.tokenizer.get_vocab(), report)
        self._sampler = Sampler(
            vocab_size=self.vocab_size,
            eos_token_ids=self.tokenizer.eos_token_ids,
            encode=partial(self.tokenizer.encode, add_special_tokens=False),
            sample_tokens=self.network.backend.sample_tokens,
        )
        self._sampler.warm_up(self.network.warm_up(config))
        self._timer = PhaseTimer()
        self._requests = OpenRequests(Deadlines(config.row_timeout, clock))
        self._scheduler: Scheduler | None = None
        self._speculation: Speculation = NoSpeculation()

    def describe(self) -> list[str]:
        """What was loaded and on what it runs, a line each."""
        network = self.network
        kind = f"{dtype_name(network.loaded.dtype)} on {network.device}, {network.backend.name} attention"
        length = f"up to {self.max_model_len:,} tokens a row{self._max_model_len_reason}"
        lines = [f"model {self.model_name}, {kind}, {length}"]
        if self._draft_model is not None:
            lines.append(f"drafts by {self._draft_model.loaded.name}")
        if network.quantized is not None:
            lines.append(network.quantized.describe())
        if network.backend.fallback_reason:
            lines.append(network.backend.fallback_reason)
        return lines

    def identity(self) -> dict[str, str]:
        """On what, and in what, the model runs: what may round differently elsewhere."""
        return self.network.identity()

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
            num_step_bytes=num_step_bytes(
                config, network.config, network.loaded.dtype, network.backend.name, self.max_model_len
            ),
            num_reserved_bytes=self._page_reserve.stop(),
            max_model_len=self.max_model_len,
            num_requests=num_requests,
            max_request_tokens=max_request_tokens,
        )
        # A sequence that outgrew the whole cache could neither go on nor be helped by preempting others.
        self.max_model_len = min(self.max_model_len, num_blocks * config.block_size)
        kv_cache = network.allocate_kv_cache(num_blocks)
        self._page_reserve.give(kv_cache.tensors() if network.backend.name == "cpu" else ())
        host_cache = HostCache(kv_cache, num_host_blocks)
        runner = ModelRunner(network.model, kv_cache, host_cache)
        if config.records_decodes_by(network.backend.name):
            runner.record_decodes(config.max_num_seqs, -(-self.max_model_len // config.block_size), self._report)
        self._executor = StepExecutor(
            runner, self._sampler, self._requests.sampling_rows, config, network.device, self._timer
        )
        identity = partial(kv_identity, config, network.config, network.weights_digest, kv_cache)
        disk_cache = open_disk_cache(config, identity, host_cache, self._report)
        manager = make_cache_manager(config, num_blocks, num_host_blocks, disk_cache, window=spec.window)
        self._scheduler = Scheduler(config, manager, network.cost_model)
        self.recovery = Recovery(config, self._scheduler, self._requests)
        if not config.overlaps_steps_on(network.device.type):
            self._speculation = make_speculation(config, self._make_proposer(num_blocks))
        return f"kv cache: {spec.describe(num_blocks)}"

    def forget_cache(self) -> None:
        """Give the KV cache back, with all that was counted and learned; `fit_cache` is to be called anew."""
        assert not self.has_unfinished_requests(), "a request still needs the cache"
        if self._scheduler is not None:
            # All that hold its tensors.
            del self._executor, self.recovery
            self._scheduler = None
            self._speculation = NoSpeculation()
            self._page_reserve.refill()
        self.max_model_len = self._most_model_len
        self._requests.num_finished = self._requests.num_completion_tokens = 0
        self._timer.seconds.clear()

    @contextmanager
    def profile_kernels(self) -> Iterator[KernelProfile]:
        """Until the block ends, the steps are profiled, which makes them slower."""
        profile = KernelProfile(self.network.device)
        with self._timer.watched(profile.watch):
            yield profile

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self.fit_cache()
        assert self._scheduler is not None
        return self._scheduler

    def has_unfinished_requests(self) -> bool:
        return len(self._requests) > 0

    def add_request(self, request: Request) -> None:
        """Queue a request; it may be refused, and then the engine is as it was.

        Raises:
            RequestError: `empty_prompt`, `prompt_too_long`, `invalid_input` for tokens the model does not have, or what
                nobody foresaw: `internal`, `oom`.
        """
        assert request.request_id not in self._requests, f"request id in use: {request.request_id}"
        scheduler = self.scheduler
        check_prompt(request.prompt_token_ids, self.vocab_size, self.max_model_len)
        kind = SampledGeneration if request.sampling_params.beam_width is None else BeamGeneration
        context = GenerationContext(self._sampler, self.tokenizer, scheduler, self.max_model_len, self._timer)
        try:
            generation = kind(request, context)
        except EngineError:
            raise
        except Exception as error:
            raise RequestError("oom" if is_out_of_memory(error) else "internal", describe(error)) from error
        scheduler.add(generation.root)
        self._requests.add(generation)

    def abort_request(self, request_id: int) -> None:
        """Forget an unfinished request, in whatever state it is."""
        self._requests.abort(request_id)

    @property
    def num_waiting(self) -> int:
        """Sequences that no step has begun, or that have to wait again."""
        return len(self.scheduler.waiting)

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
        """Advance the unfinished requests by one step of the model. Returns those that it finished.

        Raises:
            Exception: whatever went wrong; `recover` must be called before the next step.
        """
        running = self.scheduler.running
        self.recovery.begin_step()
        with self._timer.phase("draft"):
            self._speculation.propose(running)
        begin = perf_counter()
        with self._timer.phase("schedule"):
            output = self.scheduler.schedule()
        self.recovery.planned = output
        self._requests.begin_step(output)
        runs = self._executor.execute(output)
        with self._timer.phase("update"):
            num_right = {each: len(run) - 1 for each, run in runs.items() if each.draft_token_ids}
            self.scheduler.update(output, num_right, self._executor.pending)
            _logger.debug("%s", self.scheduler.last_step)
            self._requests.accept(runs)
            self._requests.end_overdue()
        self._speculation.observe(runs, output.num_scheduled_tokens, perf_counter() - begin)
        self.recovery.end_step()
        return self._requests.take_finished()

    def recover(self, error: Exception) -> list[Completion]:
        """Make the engine fit to go on after `step` raised `error`: all unfinished requests are computed again, in
        smaller steps, with the same answers. Returns what the step had finished, and the request that failed, where it
        is known to be the one to blame: `oom`, or `internal`.

        Raises:
            Exception: `error` itself, where to go on is of no use.
        """
        if self._scheduler is None:
            raise error
        blame = self.recovery.judge(error)
        _logger.debug("a step failed", exc_info=error)
        give_memory_back(error, self.network.device)
        if blame is not None:
            self._requests.fail(blame.request_id, blame.error_code, blame.error)
        self._requests.restart()
        self._executor.reset()
        self.scheduler.reset(self._requests.sequences())
        self._speculation.reset()
        if self.network.device.type == "cpu" and is_out_of_memory(error):
            # Copies in host memory are made of what is short.
            self.scheduler.kv_cache_manager.drop_tiers()
            self._executor.runner.release_host_cache()
        if blame is None:
            self._report(f"a step failed, the next have {self.recovery.describe()}: {describe(error)}")
        return self._requests.take_finished()

    def generate(
        self, prompts: Iterable[str | list[int]], sampling_params: SamplingParams | None = None, *, seed: int = 0
    ) -> list[Completion]:
        """Completions of texts or token ids, in their order; a refused one has its error. For use from Python.

        Each prompt draws from a seed of its own, derived from `seed` and its place. Not while the engine is paused.
        """
        assert self.scheduler.pause is Pause.NOTHING, "the engine is paused: it would never end"
        return complete_all(self, prompts, sampling_params or self.default_sampling_params, seed)

    def stats(self) -> EngineStats:
        """A snapshot; cheap enough to be taken several times a second."""
        return EngineStats(
            num_requests_finished=self._requests.num_finished,
            completion_tokens_total=self._requests.num_completion_tokens,
            seconds=dict(self._timer.seconds),
            **scheduler_figures(self.scheduler),
        )

    def _make_proposer(self, num_blocks: int) -> Proposer:
        if self._draft_model is None:
            return NgramProposer(self.config.prompt_lookup_min, self.config.prompt_lookup_max)
        return DraftModelProposer(self._draft_model, num_blocks, self.config, self._sampler, self._requests.next_row)
