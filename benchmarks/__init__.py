"""What the figures of docs/performance.md come from: `make bench`, or one of them, `python -m benchmarks.drain`.

A benchmark measures ours and the thing beside it in turns, in one run (`benchmarks.pairs`). The packages of the
checkout are found without a PYTHONPATH, as by the Spark applications.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT / folder) for folder in ("include", "plugins") if str(_ROOT / folder) not in sys.path]
