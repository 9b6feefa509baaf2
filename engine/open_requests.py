"""OpenRequests: what an engine has been asked and has not answered, and the answers of the step under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.generation import cut_short
from infer.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Sequence as Many

    from infer.engine.deadlines import Deadlines
    from infer.engine.generation import Generation
    from infer.engine.request import Completion
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.scheduler_output import SchedulerOutput
    from infer.engine.sequence import Sequence
    from infer.engine.speculative import Run


class OpenRequests:
    """By request id. A step that fails on its way loses no answer: they stay here until they are taken."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.num_finished = 0
        self.num_completion_tokens = 0
        self.finished: list[Completion] = []
        """Not yet taken."""
        self.suspect: int | None = None
        """The one request that what is being done concerns."""
        self._deadlines = deadlines
        self._generations: dict[int, Generation] = {}

    def __len__(self) -> int:
        return len(self._generations)

    def __iter__(self) -> Iterator[int]:
        return iter(self._generations)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._generations

    def add(self, generation: Generation) -> None:
        self._generations[generation.root.request_id] = generation

    def abort(self, request_id: int) -> None:
        self._deadlines.end(request_id)
        self._generations.pop(request_id).abort()

    def sequences(self) -> Iterator[Sequence]:
        """All that have not ended."""
        return (each for generation in self._generations.values() for each in generation.sequences())

    def begin_step(self, output: SchedulerOutput) -> None:
        """This is what it computes."""
        self._deadlines.begin(item.sequence.request_id for item in output.scheduled)

    def sampling_rows(self, sequences: Many[Sequence]) -> dict[Sequence, Many[SamplingRow]]:
        """What is sampled of those that have reached their last token."""
        rows: dict[Sequence, Many[SamplingRow]] = {}
        for sequence in sequences:
            self.suspect = sequence.request_id
            rows[sequence] = self._generations[sequence.request_id].sampling_rows(sequence)
        self.suspect = None
        return rows

    def next_row(self, sequence: Sequence) -> SamplingRow:
        return self._generations[sequence.request_id].sampling_rows(sequence)[0]

    def accept(self, runs: Mapping[Sequence, Run]) -> None:
        """Book what was sampled."""
        for sequence, run in runs.items():
            generation = self._generations.get(sequence.request_id)
            if generation is None or sequence.status is SequenceStatus.FINISHED:
                # Of a request that failed by another of its sequences; or it ended by a token that was read when the
                # next was being computed.
                continue
            self.suspect = sequence.request_id
            num_before = generation.num_generated_tokens
            completion = generation.accept(sequence, run)
            self.num_completion_tokens += generation.num_generated_tokens - num_before
            if completion is not None:
                self._finish(completion)
        self.suspect = None

    def end_overdue(self) -> None:
        """End those that are over their time, wherever they are."""
        for request_id in self._deadlines.expired():
            generation = self._generations[request_id]
            generation.abort()
            self._finish(cut_short(generation, "timeout", f"not finished within {self._deadlines.seconds:g} s"))

    def fail(self, request_id: int, error_code: str, error: str) -> None:
        """End a request with what it has come to. Its sequences are left where they are."""
        self._finish(cut_short(self._generations[request_id], error_code, error))

    def restart(self) -> None:
        """All are computed again."""
        self.suspect = None
        self._deadlines.restart()

    def take_finished(self) -> list[Completion]:
        finished, self.finished = self.finished, []
        return finished

    def _finish(self, completion: Completion) -> None:
        self._deadlines.end(completion.request_id)
        del self._generations[completion.request_id]
        self.finished.append(completion)
        self.num_finished += 1
