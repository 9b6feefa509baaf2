"""One process that forks runs, for all tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from forked_runs import ForkedRuns

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def runs() -> Iterator[ForkedRuns]:
    with ForkedRuns() as started:
        yield started
