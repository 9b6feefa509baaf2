from __future__ import annotations

import pytest
import torch

from infer.engine.kernel_profile import KernelProfile, work_of
from infer.engine.phase_timer import PhaseTimer
from infer.kernels.operators import Work, operator

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "work"),
    [
        *((name, Work.GEMM) for name in ("mm", "addmm", "bmm", "mv", "linear", "_linear_pointwise", "_int_mm")),
        *((name, Work.GEMM) for name in ("qlinear_pointwise", "_scaled_mm", "_grouped_mm", "_mkl_linear")),
        ("_scaled_dot_product_flash_attention_for_cpu", Work.ATTENTION),
        *((name, Work.OTHER) for name in ("add", "mul", "embedding", "_softmax", "silu", "amax", "cat", "mean")),
    ],
)
def test_operators_of_torch_are_told_by_their_names(name, work):
    assert work_of(name) is work


@operator(Work.ATTENTION)
def fused(hidden, weight):
    return torch.nn.functional.silu(hidden @ weight)


def operators_of(profile: KernelProfile) -> dict[tuple[str, str], Work]:
    return {(key.phase, key.operator): key.work for key in profile.seconds}


@torch.inference_mode()
def test_operators_are_booked_under_their_phase_and_what_ours_call_is_part_of_them():
    profile, timer = KernelProfile(CPU), PhaseTimer()
    hidden, weight = torch.randn(4, 8), torch.randn(8, 8)
    with timer.watched(profile.watch):
        with timer.phase("prepare"):
            hidden + 1
        with timer.phase("execute"):
            fused(torch.nn.functional.linear(hidden, weight), weight)
            hidden.view(8, 4)
        with timer.phase("sample"):
            hidden.amax(-1)
    fused(hidden, weight)
    found = operators_of(profile)
    assert found.pop(("execute", "fused")) is Work.ATTENTION
    assert found.pop(("sample", "amax")) is Work.OTHER
    assert set(found.values()) == {Work.GEMM}
    assert {phase for phase, _ in found} == {"execute"}
    assert all(seconds > 0 for seconds in profile.seconds.values())


@torch.inference_mode()
def test_operator_that_fails_leaves_the_profile_usable():
    profile, timer = KernelProfile(CPU), PhaseTimer()
    with timer.watched(profile.watch):
        with pytest.raises(RuntimeError), timer.phase("execute"):
            fused(torch.randn(4, 8), torch.randn(4, 8))
        with timer.phase("execute"):
            torch.randn(4, 8).sum()
    assert ("execute", "sum") in operators_of(profile)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.inference_mode()
def test_events_on_the_stream_are_the_clock_of_a_gpu():
    profile, timer = KernelProfile(torch.device("cuda")), PhaseTimer()
    hidden = torch.randn(4096, 4096, device="cuda")
    with timer.watched(profile.watch), timer.phase("execute"):
        hidden @ hidden
    assert all(seconds > 0 for seconds in profile.seconds.values())
    assert ("execute", "mm") in operators_of(profile)
