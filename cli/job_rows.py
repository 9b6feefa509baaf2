"""What a row means in a run: what it asks of the engine, what is recorded of it, and where that goes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from infer.cli.report import FailureTally
from infer.cli.row_params import read_priority
from infer.engine.errors import RequestError, describe
from infer.engine.phase_timer import PhaseTimer
from infer.engine.request import Request
from infer.engine.seeding import derive_seed, prompt_identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.cli.config import SeedBy
    from infer.cli.prompt import PromptBuilder
    from infer.cli.result import Record, ResultBuilder
    from infer.cli.row_params import RowParams
    from infer.cli.saving import Saver
    from infer.engine.request import Completion
    from infer.engine.sampling_params import SamplingParams
    from infer.io.row import Row


@dataclass(slots=True)
class RunCounts:
    """How far a run is; counted as rows finish, in whatever order."""

    rows_done: int = 0
    """Failed ones included."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generated_tokens: int = 0
    """Those of answers that were not kept included."""
    cached_tokens: int = 0
    rows_resumed: int = 0
    """Done in an earlier run."""
    rows_deduplicated: int = 0
    """That got the answer of an equal one."""
    failures: FailureTally = field(default_factory=FailureTally)

    def resume(self, num_rows: int, failures: Mapping[str, int]) -> None:
        """Take over what an earlier run has done."""
        self.rows_done += num_rows
        self.rows_resumed = num_rows
        for code, num_failed in failures.items():
            self.failures.add(code, "", num_failed)

    @property
    def rows_failed(self) -> int:
        return sum(failure.rows for failure in self.failures.counts())


@dataclass(frozen=True, slots=True)
class RowSampling:
    """The sampling parameters, the seed and the priority of a row."""

    defaults: SamplingParams
    row_params: RowParams | None
    """None: every row has the defaults."""
    seed: int
    """Mixed with what `seed_by` says: rows of the same seed draw apart, whether it is the job's or in a column."""
    has_priority: bool = False
    """Whether rows say by a column which of them goes first."""
    seed_by: SeedBy = "row"

    def request(self, row: Row, prompt_token_ids: Sequence[int]) -> Request:
        """The request of `row`.

        Raises:
            RequestError: `invalid_input`, a sampling parameter, a seed or a priority of its own that cannot be.
        """
        params, seed = self.defaults, self.seed
        if self.row_params is not None:
            params, seed = self.row_params.sampling_params(row, params), self.row_params.seed(row, seed)
        priority = read_priority(row) if self.has_priority else 0
        identity = row.index if self.seed_by == "row" else prompt_identity(prompt_token_ids)
        return Request(row.index, tuple(prompt_token_ids), params, derive_seed(seed, identity, 0), priority)


class JobRows:
    """The handler of a RowLoop. `counts` is kept up to date for whoever looks."""

    def __init__(
        self,
        prompts: PromptBuilder,
        sampling: RowSampling,
        results: ResultBuilder,
        saver: Saver,
        counts: RunCounts,
        timer: PhaseTimer | None = None,
    ) -> None:
        self._prompts = prompts
        self._sampling = sampling
        self._results = results
        self._saver = saver
        self._counts = counts
        self._timer = timer or PhaseTimer()

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        with self._timer.phase("render"):
            prompts = iter(self._build([row for row in rows if row.error is None]))
        return [
            self._request(row, next(prompts)) if row.error is None else RequestError(row.error.code, row.error.message)
            for row in rows
        ]

    def begin(self, last_index: int) -> None:
        with self._timer.phase("write"):
            self._saver.begin(last_index)

    def begin_alone(self, index: int) -> None:
        with self._timer.phase("write"):
            self._saver.begin_alone(index)

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        self._counts.rows_done += 1
        if not isinstance(outcome, RequestError):
            try:
                record = self._results.completed(row.index, outcome)
            except Exception as error:
                outcome = _internal(error)
        if isinstance(outcome, RequestError):
            # What could not be read says itself where it stands.
            place = f"row {row.index}: " if row.error is None else ""
            self._counts.failures.add(outcome.code, f"{place}{outcome.public}")
            return self._results.failed(row.index, outcome.code, str(outcome))
        if outcome.error_code is not None:
            self._counts.failures.add(outcome.error_code, f"row {row.index}: {outcome.error or ''}")
        self._counts.prompt_tokens += outcome.num_prompt_tokens
        self._counts.completion_tokens += outcome.num_output_tokens
        self._counts.generated_tokens += outcome.num_generated_tokens
        self._counts.cached_tokens += outcome.num_cached_tokens
        return record

    def finish_equal(self, row: Row, outcome: Completion | RequestError) -> Record:
        self._counts.rows_deduplicated += 1
        if not isinstance(outcome, RequestError):
            outcome = replace(outcome, num_cached_tokens=outcome.num_prompt_tokens, num_generated_tokens=0)
        return self.finish(row, outcome)

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        with self._timer.phase("write"):
            self._saver.add(rows)

    def _build(self, rows: list[Row]) -> list[list[int] | RequestError]:
        try:
            return [*self._prompts.build_many(rows)]
        except Exception:
            # Of one row among them, most likely. None of the others is to suffer from it.
            return [self._build_one(row) for row in rows]

    def _build_one(self, row: Row) -> list[int] | RequestError:
        try:
            return self._prompts.build_many([row])[0]
        except Exception as error:
            return _internal(error)

    def _request(self, row: Row, prompt: list[int] | RequestError) -> Request | RequestError:
        if isinstance(prompt, RequestError):
            return prompt
        try:
            return self._sampling.request(row, prompt)
        except RequestError as error:
            return error
        except Exception as error:
            return _internal(error)


def _internal(error: Exception) -> RequestError:
    """What nobody foresaw is the row's own, as far as can be told."""
    return RequestError("internal", describe(error))
