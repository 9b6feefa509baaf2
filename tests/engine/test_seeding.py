import numpy as np
import pytest

from infer.engine.seeding import derive_seed, uniforms


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    # 40,000 draws in 100 bins: chi-square with 99 degrees of freedom is below 149 in 999 of 1,000 cases.
    seeds, positions = (axis.ravel().tolist() for axis in np.meshgrid(np.arange(200), np.arange(200)))
    draws = uniforms(seeds, positions)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 149


@pytest.mark.parametrize("shift", [1, 2, 2**32, 0x9E3779B97F4A7C15])
def test_uniforms_of_two_seeds_are_independent(shift: int) -> None:
    # The correlation of 20,000 independent pairs is within 0.025 in 9,996 of 10,000 cases; also one position apart.
    positions = range(20_000)
    first = uniforms([7] * 20_000, positions)
    second = uniforms([7 + shift] * 20_000, positions)
    for one, other in ((first, second), (first[1:], second[:-1]), (first[:-1], second[1:]), (first[1:], first[:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.025


def test_uniforms_depend_on_nothing_but_their_seed_and_position() -> None:
    together = uniforms([3, 1, 2**64 - 1, 3], [0, 5, 9, 1])
    alone = [uniforms([seed], [position])[0] for seed, position in ((3, 0), (1, 5), (2**64 - 1, 9), (3, 1))]
    assert together.tolist() == alone


def test_draws_stay_the_same_from_version_to_version() -> None:
    # A resumed job continues with the noise it began with.
    assert derive_seed(0, 0, 0) == 2558736989570252433
    assert uniforms([42], [3]).tolist() == [0.9777767857540063]


def test_derived_seeds_differ_in_every_part() -> None:
    seeds = {derive_seed(seed, row, sample) for seed in range(20) for row in range(50) for sample in range(20)}
    assert len(seeds) == 20 * 50 * 20
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_derived_seeds_take_any_whole_number() -> None:
    assert derive_seed(-1, 0, 0) == derive_seed(2**64 - 1, 0, 0)
    assert derive_seed(2**63, 2**40, 0) != derive_seed(2**63, 0, 0)
