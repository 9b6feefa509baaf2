from __future__ import annotations

import math

import pytest
import torch

from infer.engine.limits import MachineLimits, measure_limits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_limits_of_this_machine_are_figures(dtype):
    limits = measure_limits(torch.device("cpu"), dtype)
    assert math.isfinite(limits.gemm_flops)
    assert math.isfinite(limits.read_bandwidth)
    assert min(limits.gemm_flops, limits.read_bandwidth) > 0


def test_best_of_two_measurements_is_taken_figure_by_figure():
    assert MachineLimits(1.0, 4.0).best_of(MachineLimits(3.0, 2.0)) == MachineLimits(3.0, 4.0)


def test_ridge_is_where_reading_and_computing_take_the_same_time():
    assert MachineLimits(gemm_flops=400e9, read_bandwidth=40e9).ridge == 10
