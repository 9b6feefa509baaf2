"""PageReserve: where its pages end up, and that nothing of it is left."""

import resource
import sys

import pytest
import torch

from infer.engine.page_reserve import PageReserve
from infer.kernels.cpu.layout import allocate_kv_cache

_HUGE_PAGE = 2 << 20
_CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="moves pages by Linux's calls")


def _tensors(num_layers: int) -> list[torch.Tensor]:
    pages = [allocate_kv_cache(4096, 16, 1, 64, 64, torch.float32, torch.float32, _CPU) for _ in range(num_layers)]
    return [tensor for each in pages for tensor in each.tensors()]


def _begun(weights_bytes: int) -> PageReserve:
    reserve = PageReserve(_CPU)
    reserve.begin(weights_bytes)
    if reserve._thread is not None:
        reserve._thread.join()
    return reserve


def _num_mapped_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()


def _faults_of_filling(tensors: list[torch.Tensor]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for tensor in tensors:
        tensor.fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_page_reserve_is_four_times_the_weights() -> None:
    assert _begun(4 * _HUGE_PAGE + 5).stop() == 16 * _HUGE_PAGE


def test_given_pages_stand_in_the_place_of_the_first_ones() -> None:
    reserve, tensors = _begun(10 * _HUGE_PAGE), _tensors(2)
    assert all(not tensor.any() for tensor in tensors)
    size = tensors[0].nbytes
    fresh = _faults_of_filling(_tensors(2))
    # Each tensor is 16 MiB and begins with a huge page; the reserve has ten for each of the four.
    reserve.give(tensors)
    assert size == 8 * _HUGE_PAGE
    assert _faults_of_filling(tensors) < max(fresh / 8, 16)
    assert all(bool((tensor == 1.0).all()) for tensor in tensors)


def test_given_pages_are_zeros_and_the_tensors_whole() -> None:
    reserve, tensors = _begun(3 * _HUGE_PAGE), _tensors(1)
    for tensor in tensors:
        tensor.fill_(7.0)
    before = [tensor.clone() for tensor in tensors]
    reserve.give(tensors)
    changed = [int((tensor != old).sum()) * 4 for tensor, old in zip(tensors, before, strict=True)]
    assert changed == [6 * _HUGE_PAGE, 6 * _HUGE_PAGE]
    assert all(set(tensor.unique().tolist()) == {0.0, 7.0} for tensor in tensors)


def test_refilled_reserve_is_as_large_and_can_be_given_again() -> None:
    before = _num_mapped_bytes()
    reserve = _begun(4 * _HUGE_PAGE)
    reserve.give(_tensors(1))
    reserve.refill()
    reserve.refill()
    assert reserve.stop() == 16 * _HUGE_PAGE
    tensors = _tensors(1)
    reserve.give(tensors)
    assert reserve.stop() == 0
    assert _faults_of_filling(tensors) < 16
    del tensors, reserve
    assert _num_mapped_bytes() - before < 16 * _HUGE_PAGE


def test_reserve_gives_what_it_does_not_need_back() -> None:
    before = _num_mapped_bytes()
    reserve = _begun(64 * _HUGE_PAGE)
    assert _num_mapped_bytes() - before >= 256 * _HUGE_PAGE
    reserve.give([])
    assert _num_mapped_bytes() - before < 64 * _HUGE_PAGE
    assert reserve.stop() == 0


def test_forgotten_reserve_gives_all_back() -> None:
    before = _num_mapped_bytes()
    reserve = _begun(64 * _HUGE_PAGE)
    del reserve
    assert _num_mapped_bytes() - before < 64 * _HUGE_PAGE


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_reserve_is_empty_where_it_is_of_no_use(device: str) -> None:
    reserve = PageReserve(torch.device(device))
    reserve.begin(1 << 30 if device == "meta" else _HUGE_PAGE // 8)
    assert reserve.stop() == 0
    reserve.give(_tensors(1))
