"""The scripts of `benchmarks/` import each other as they do when they are run: from their own folder."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
