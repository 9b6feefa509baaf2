"""The process environment of the tests, set before torch, numba or Triton is imported."""

from __future__ import annotations

import os
import signal

# A job that a shell runs in the background ignores Ctrl-C, and so would the runs that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread: tiny models gain nothing from more, and threads that wait for each other slow every test process down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

# Without a GPU, Triton's kernels are interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
