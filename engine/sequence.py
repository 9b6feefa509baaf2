"""A request while it is being generated."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infer.engine.block import Block
    from infer.engine.block_hash import BlockHash
    from infer.engine.request import Request


class SequenceStatus(Enum):
    """Where a sequence stands. WAITING covers those preempted with nothing left, SWAPPED waits as well."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    """What it has computed lies in `host_blocks`."""
    FINISHED = auto()


class Sequence:
    """Tokens of one request and how far the cache has got with them. Changed by the scheduler and its cache manager; a
    sampled token is appended by its generation.

    token_ids   |----- prompt -----|-- generated --| drafts |
                |---- num_computed_tokens ---|     what is left, a step hands out

    Where steps overlap, the last generated token may be pending: it counts, and the next step can compute it, but only
    the device knows which it is. Drafts are guesses at what comes next: computed like tokens, and kept where they turn
    out to be what is sampled.
    """

    __slots__ = (
        "arrival",
        "awaits_choice",
        "block_hashes",
        "block_table",
        "branch_index",
        "draft_token_ids",
        "host_blocks",
        "max_computed_tokens",
        "max_output_tokens",
        "num_branches",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hashed_blocks",
        "num_passed_blocks",
        "num_pending_tokens",
        "num_prompt_tokens",
        "output_token_ids",
        "request",
        "status",
        "token_ids",
    )

    def __init__(self, request: Request, max_model_len: int | None = None) -> None:
        self.request = request
        self.max_output_tokens = request.sampling_params.max_tokens
        """The limit of the answer: what was asked for, or what the prompt leaves of `max_model_len`."""
        if max_model_len is not None:
            self.max_output_tokens = min(self.max_output_tokens, max_model_len - len(request.prompt_token_ids))
        self.arrival = 0
        """How many requests came before its own; the scheduler counts."""
        self.branch_index = 0
        """Tells it from the others of its request."""
        self.num_branches = 1
        """Into how many it is about to be forked, itself included."""
        self.awaits_choice = False
        """Computed to its last token, but the next is chosen together with others that are not."""
        self.token_ids = list(request.prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.draft_token_ids: list[int] = []
        """Proposed before a step, cut by its plan to what it computes, gone after it."""
        self.num_pending_tokens = 0
        """Sampled behind `token_ids`, and not read yet."""
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        """Prompt tokens the prefix cache gave when first scheduled; None before."""
        self.max_computed_tokens = 0
        """The most that `num_computed_tokens` has been: what a preemption threw away, or a fork without a seat
        cannot share, is computed a second time."""
        self.block_table: list[Block] = []
        self.host_blocks: list[Block] = []
        """Copies in host memory of all blocks it had when it was swapped out."""
        self.block_hashes: list[BlockHash] = []
        """Keys of the blocks that `token_ids` fills."""
        self.num_hashed_blocks = 0
        """The first so many blocks of `block_table` are in the prefix cache."""
        self.num_passed_blocks = 0
        """The first so many blocks are behind the window of every layer: given back, the null block in their place."""
        self.status = SequenceStatus.WAITING

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}, {self.status.name}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens}, blocks={[block.block_id for block in self.block_table]})"
        )

    @property
    def was_begun(self) -> bool:
        """Whether it has been running, or was forked from one that has."""
        return self.num_cached_tokens is not None

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids) + self.num_pending_tokens

    @property
    def awaits_end(self) -> bool:
        """Whether the last token that it may have is pending: there is nothing to compute until it is read."""
        return self.num_pending_tokens > 0 and self.num_output_tokens >= self.max_output_tokens

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute before something else is known."""
        return self.awaits_choice or self.awaits_end

    @property
    def num_tokens_with_spec(self) -> int:
        """What the cache has to catch up with."""
        return self.num_tokens + len(self.draft_token_ids)

    @property
    def max_draft_tokens(self) -> int:
        """Drafts that can be of use: a step samples one token more than it has drafts, and the answer has a limit. None
        where the next token is not simply drawn: of beams, and of what is about to be forked."""
        if self.num_branches > 1 or self.request.sampling_params.beam_width is not None:
            return 0
        return self.max_output_tokens - len(self.output_token_ids) - 1

    def fork(self, branch_index: int) -> Sequence:
        """Another of the same tokens, with nothing in the cache."""
        child = Sequence(self.request)
        child.max_output_tokens = self.max_output_tokens
        child.arrival = self.arrival
        child.branch_index = branch_index
        child.token_ids = self.token_ids.copy()
        child.output_token_ids = self.output_token_ids.copy()
        child.num_cached_tokens = self.num_cached_tokens
        child.max_computed_tokens = self.max_computed_tokens
        child.block_hashes = self.block_hashes.copy()
        return child

    def lose_cache(self) -> None:
        """Be as one that waits and holds nothing, and of which nothing is pending. Its blocks are its former holder's
        business."""
        self.status = SequenceStatus.WAITING
        self.num_computed_tokens = self.num_hashed_blocks = self.num_passed_blocks = self.num_pending_tokens = 0
        self.draft_token_ids, self.block_table, self.host_blocks = [], [], []

    def append(self, token_id: int) -> None:
        """The one that was pending, where one was."""
        self.num_pending_tokens = max(0, self.num_pending_tokens - 1)
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)
