"""Draws that depend on a seed and a position only: no generator has a state to carry, save or share.

Mixing is that of SplitMix64 (Steele, Lea, Flood 2014, figure 16), used as a hash of a few words instead of a stream.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def derive_seed(seed: int, row_index: int, sample_index: int) -> int:
    """The seed of one sample of one row, 64 bits. Rows never share their noise, and keep it wherever they run."""
    state = 0
    for word in (seed, row_index, sample_index):
        state = _absorb(state, word & _MASK)
    return state


def prompt_identity(token_ids: Sequence[int]) -> int:
    """64 bits that tell a prompt from others, to stand for a row's position in `derive_seed`: rows of equal prompts
    then draw alike, wherever they are."""
    return int.from_bytes(hashlib.sha256(np.array(token_ids, "<u8").tobytes()).digest()[:8], "little")


def branch_seed(seed: int, branch_index: int) -> int:
    """The seed of one of several answers, given the request's: the first draws as if it were the only one."""
    return _absorb(seed, branch_index) if branch_index else seed


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), with 53 random bits."""
    state = np.zeros(len(seeds), np.uint64)
    for words in ([seed & _MASK for seed in seeds], positions):
        state = _absorb(state, np.array(words, np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _absorb(state: Any, word: Any) -> Any:
    """A state that every bit of `state` and of `word` has a say in; one-to-one in each of the two.

    Both are ints of 64 bits, or both arrays of uint64.
    """
    mixed = ((state ^ word) + _GAMMA) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
