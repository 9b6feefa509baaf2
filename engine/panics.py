"""Panics of libraries written in Rust: Python gets them as exceptions that no `except Exception` sees.

A hostile tokenizer.json makes the `tokenizers` library panic, when it is read, or at some text only.
"""

from __future__ import annotations


def is_panic(error: BaseException) -> bool:
    """Whether a library has panicked. Their class is not to be had by name: each library has one of its own."""
    return type(error).__module__ == "pyo3_runtime"
