"""The order in which prompts find most of each other's prefixes in the cache: depth first over the tree of prefixes.

Sorted, prompts of one prefix stand together, and what neighbours share tells the tree without walking it by tokens:

    A A A B    sorted   shared   tree        planned
    A A C      ------   ------   root          0  0  of its tokens are there already
    D D        A A A B            |- A A       1  2
    A A E      A A C      2       |   |- A B   2  2
               A A E      2       |   |- C     3  0
               D D        0       |   '- E
                                  '- D D

A prefix is computed once and read by all who share it before any other comes, so a cache of one path of the tree does;
no order finds more (Zheng et al. 2024, SGLang, theorem 3.1). Which child of a node comes first is free, and goes by
what there is to generate.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_BYTES_PER_TOKEN = 4
_TOKENS_COMPARED_AT_ONCE = 1 << 18


class Goal(Enum):
    """Which of several prefixes comes first."""

    FLOW = auto()
    """More prompts follow: those first that generate much for what they have to compute, which then runs beside the
    prompts of the others."""
    FINISH = auto()
    """The last ones: the longest answers first, so that the end is not one of them alone."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    index: int
    """Among those that were given."""
    num_shared_tokens: int
    """That the prompts before it have left in a cache, in full blocks; at least one token is left to compute."""


def pack_prompt(token_ids: Iterable[int]) -> bytes:
    """Token ids, each from 0 to 2**32 - 1, in four bytes each, and so that bytes compare as the tokens do.

    Raises:
        OverflowError: some id is out of range.
    """
    packed = array("I", token_ids)
    assert packed.itemsize == _BYTES_PER_TOKEN, packed.itemsize
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def unpack_prompt(prompt: bytes) -> tuple[int, ...]:
    """The token ids of `pack_prompt`."""
    packed = array("I", prompt)
    if sys.byteorder == "little":
        packed.byteswap()
    return tuple(packed)


def num_prompt_tokens(prompt: bytes) -> int:
    return len(prompt) // _BYTES_PER_TOKEN


def plan_order(
    prompts: Sequence[bytes],
    num_output_tokens: Sequence[int],
    *,
    block_size: int,
    goal: Goal = Goal.FLOW,
    after: Sequence[bytes] = (),
) -> list[PlannedPrompt]:
    """The order of packed prompts, of which each is expected to generate so many tokens.

    `after` are the prompts that ran last, the latest at the end: those that share most with them go on where they have
    ended, before the cache forgets them. Among equals their own order is kept.
    """
    given = [*prompts, *after]
    num_prompts = len(prompts)
    if num_prompts == 0:
        return []
    order = sorted(range(len(given)), key=given.__getitem__)
    ordered = [given[index] for index in order]
    depths = common_prefix_lengths(ordered) // block_size
    # Of the prefix that it shares with any other: with one of its neighbours.
    shared = np.maximum(depths, np.append(depths[1:], 0))
    num_own = np.array([num_prompt_tokens(each) for each in ordered], np.int64) - block_size * shared
    leaves = [
        _Leaf(index, num_own_tokens, *((num_output_tokens[index], 0) if index < num_prompts else (0, index)))
        for index, num_own_tokens in zip(order, num_own.tolist(), strict=True)
    ]
    root = _Tree(goal, block_size).of(leaves, depths.tolist())
    planned = []
    for leaf, depth in _depth_first(root):
        if leaf.index < num_prompts:
            most = (num_prompt_tokens(given[leaf.index]) - 1) // block_size
            planned.append(PlannedPrompt(leaf.index, max(0, min(depth, most)) * block_size))
    return planned


def common_prefix_lengths(prompts: Sequence[bytes]) -> NDArray[np.int64]:
    """How many of its first tokens each packed prompt has in common with the one before it; 0 for the first."""
    lengths = np.array([num_prompt_tokens(each) for each in prompts], np.int64)
    result = np.zeros(len(prompts), np.int64)
    if len(prompts) < 2:
        return result
    tokens = np.frombuffer(b"".join(prompts), np.uint32)
    starts = np.cumsum(lengths) - lengths
    compared = np.minimum(lengths[1:], lengths[:-1])
    part_of = np.cumsum(compared) // _TOKENS_COMPARED_AT_ONCE
    # Some pairs at a time: the indices of all tokens would take many times the memory of the tokens.
    bounds = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(compared)]
    for begin, end in pairwise(bounds):
        one, other = starts[begin:end], starts[begin + 1 : end + 1]
        result[begin + 1 : end + 1] = _common_lengths(tokens, one, other, compared[begin:end])
    return result


def _common_lengths(
    tokens: NDArray[np.uint32], one: NDArray[np.int64], other: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How far the pieces of `tokens` that start at `one` are like those at `other`, up to `lengths`."""
    ends = np.cumsum(lengths)
    begins = ends - lengths
    # All pieces as one, and for each the first place that differs, or its end.
    place = np.arange(ends[-1]) - np.repeat(begins, lengths)
    at = np.flatnonzero(tokens[np.repeat(one, lengths) + place] != tokens[np.repeat(other, lengths) + place])
    first = np.append(at, ends[-1])[np.searchsorted(at, begins)]
    num_equal: NDArray[np.int64] = np.minimum(first, ends) - begins
    return num_equal


@dataclass(slots=True)
class _Leaf:
    """A prompt."""

    index: int
    num_own_tokens: int
    """Of the prompt, behind what it shares with any other."""
    num_output_tokens: int
    ran_at: int
    """The greater the later; 0 has not run."""


@dataclass(slots=True)
class _Node:
    """A prefix of `depth` blocks that several prompts share."""

    depth: int
    children: list[tuple[_Rank, _Leaf | _Node]] = field(default_factory=list)


_Rank = tuple[int, float, int, int, int]
"""Of a leaf or a node: less when it ran last, less what speaks for it, the least index; then, of all its prompts, what
they have to compute and to generate. The least goes first, and no two are equal in the first three."""

_Child = tuple[_Rank, _Leaf | _Node]


class _Tree:
    """Grows a tree from its leaves, the first to the last."""

    def __init__(self, goal: Goal, block_size: int) -> None:
        self._goal = goal
        self._block_size = block_size
        self._open = [_Node(0)]
        """The path to the last leaf."""

    def of(self, leaves: Sequence[_Leaf], depths: Sequence[int]) -> _Node:
        """The root over sorted leaves, of which each shares `depths` blocks with the one before it."""
        last: _Child | None = None
        for leaf, depth in zip(leaves, depths, strict=True):
            if last is not None:
                self._hang(last, depth)
            last = self._rank_leaf(leaf), leaf
        assert last is not None
        self._hang(last, 0)
        (root,) = self._open
        root.children.sort(key=_rank)
        return root

    def _hang(self, child: _Child, depth: int) -> None:
        """Take in a leaf that shares `depth` blocks with the next: what is deeper is complete."""
        while self._open[-1].depth > depth:
            node = self._open.pop()
            node.children.append(child)
            node.children.sort(key=_rank)
            child = self._rank_node(node, node.depth - max(depth, self._open[-1].depth)), node
        if self._open[-1].depth < depth:
            self._open.append(_Node(depth))
        self._open[-1].children.append(child)

    def _rank_leaf(self, leaf: _Leaf) -> _Rank:
        new, output = leaf.num_own_tokens, leaf.num_output_tokens
        return -leaf.ran_at, -self._weight(new, output, output), leaf.index, new, output

    def _rank_node(self, node: _Node, num_own_blocks: int) -> _Rank:
        """That of all its prompts together; where the longest answer counts, of the one that has it."""
        ran_at, weights, indices, new, output = zip(*(rank for rank, _ in node.children), strict=True)
        num_new, num_output = sum(new) + num_own_blocks * self._block_size, sum(output)
        weight = self._weight(num_new, num_output, -min(weights))
        return min(ran_at), -weight, min(indices), num_new, num_output

    def _weight(self, num_new_tokens: int, num_output_tokens: int, longest: float) -> float:
        if self._goal is Goal.FINISH:
            return longest
        # Coarse: what is about as heavy stays in its order.
        return round(log2((1 + num_output_tokens) / (1 + num_new_tokens)))


def _rank(child: _Child) -> _Rank:
    return child[0]


def _depth_first(root: _Node) -> Iterator[tuple[_Leaf, int]]:
    """Every leaf, and how many blocks it shares with the one before it."""
    stack: list[tuple[_Leaf | _Node, int]] = [(root, 0)]
    while stack:
        item, shared = stack.pop()
        if isinstance(item, _Leaf):
            yield item, shared
            continue
        # The first child follows what came before the node; the others follow a sibling.
        depths = [shared, *[item.depth] * (len(item.children) - 1)]
        children = [(child, depth) for (_, child), depth in zip(item.children, depths, strict=True)]
        stack.extend(reversed(children))
