"""A request whose answers are drawn token by token, each on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from infer.engine.branch import Branch
from infer.engine.generation import abort_all, failed_completion, finished_completion, partial_choice
from infer.engine.seeding import branch_seed
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from infer.engine.generation import GenerationContext
    from infer.engine.request import Choice, Completion, Request
    from infer.engine.sampler import SampledToken
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.stopping import Stop


class SampledGeneration:
    """The prompt is computed once, by one sequence, and forked at the first token.

    Raises:
        RequestError: `invalid_input`, its parameters name a token that the model does not have.
    """

    __slots__ = ("_branches", "_choices", "_context", "_first_row", "num_generated_tokens", "root")

    def __init__(self, request: Request, context: GenerationContext) -> None:
        params = request.sampling_params
        self.root = Sequence(request, context.max_model_len)
        self.root.num_branches = params.num_branches
        self.num_generated_tokens = 0
        self._context = context
        self._branches: dict[Sequence, Branch] = {}
        """Those that were begun and have not ended. Empty before there are several."""
        self._choices: dict[int, Choice] = {}
        """By branch."""
        self._first_row = context.sampler.row(
            params,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=self.root.output_token_ids,
            seed=request.seed,
            # A rank needs the logprobs, whether they are reported or not.
            num_logprobs=0 if params.logprobs is None and params.is_ranked else params.logprobs,
        )

        if params.num_branches == 1:
            self._begin(self.root)

    def sampling_rows(self, sequence: Sequence) -> list[SamplingRow]:
        if self._branches:
            return self._branches[sequence].sampling_row.ahead(sequence.draft_token_ids)
        return [self._row(sequence, branch_index) for branch_index in range(self.root.num_branches)]

    def accept(self, sequence: Sequence, sampled: Many[SampledToken]) -> Completion | None:
        runs = [(sequence, sampled)]
        if not self._branches:
            self._fork()
            runs = [(branch, [token]) for branch, token in zip(self._branches, sampled, strict=True)]
        for each, run in runs:
            error_code = self._extend(self._branches[each], run)
            if error_code is not None:
                self.abort()
                return failed_completion(self, each, error_code, self._context.tokenizer)
        return None if self._branches else self._completion()

    def abort(self) -> None:
        abort_all(self._context.scheduler, self.sequences())

    def sequences(self) -> list[Sequence]:
        return list(self._branches) or [self.root]

    def partial_choices(self) -> list[Choice]:
        return [*self._choices.values(), *map(partial_choice, self.sequences())]

    def _extend(self, branch: Branch, run: Many[SampledToken]) -> str | None:
        """Append token by token, until one is the last; those behind it are dropped. Returns why there was none."""
        for token in run:
            if token.error_code is not None:
                return token.error_code
            self.num_generated_tokens += 1
            stop = branch.append(token)
            if stop is not None:
                self._end(branch, stop)
                break
        return None

    def _fork(self) -> None:
        scheduler = self._context.scheduler
        num_branches, self.root.num_branches = self.root.num_branches, 1
        children = [scheduler.fork(self.root, branch_index) for branch_index in range(1, num_branches)]
        for sequence in (self.root, *children):
            self._begin(sequence)

    def _begin(self, sequence: Sequence) -> None:
        row = self._row(sequence, sequence.branch_index)
        self._branches[sequence] = Branch(sequence, row, self._context.tokenizer)

    def _row(self, sequence: Sequence, branch_index: int) -> SamplingRow:
        if branch_index == 0:
            return self._first_row
        seed = branch_seed(self.root.request.seed, branch_index)
        return replace(self._first_row, output_token_ids=sequence.output_token_ids, seed=seed)

    def _end(self, branch: Branch, stop: Stop) -> None:
        with self._context.timer.phase("detokenize"):
            self._choices[branch.sequence.branch_index] = branch.choice(stop)
        del self._branches[branch.sequence]
        self._context.scheduler.finish(branch.sequence)

    def _completion(self) -> Completion:
        choices = [choice for _, choice in sorted(self._choices.items())]
        params = self.root.request.sampling_params
        if params.is_ranked:
            choices.sort(key=lambda choice: choice.score or 0.0, reverse=True)
        return finished_completion(self, choices[: params.n])
