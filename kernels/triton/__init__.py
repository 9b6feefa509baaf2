"""The operators in Triton: for GPUs, and in the interpreter for tests."""

from infer.kernels.reference.kv_cache import allocate_kv_cache
from infer.kernels.triton.paged_attention import paged_attention
from infer.kernels.triton.store_kv import store_kv
from infer.kernels.triton.support import why_not

__all__ = ["allocate_kv_cache", "paged_attention", "store_kv", "why_not"]
