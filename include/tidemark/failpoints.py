"""Named places where a test may kill the process, so that "what if it dies here" has an answer that was tried.

`reach(name)` does nothing unless the environment variable TIDEMARK_FAILPOINT is `name` (SIGKILL: no handler, no
`finally`, as when a machine is lost) or `name:stop` (SIGSTOP: a process that everybody believes dead, and that goes on
later). `NAMES` lists all of them in the order in which a run reaches them; tests/faults walks the list.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "TIDEMARK_FAILPOINT"

OF_A_BACKFILL: Final = (
    "plan.before_open",
    "plan.after_open",
    "read.after_low",
    "read.after_files",
    "read.before_chunk",
    "read.after_chunk",
    "read.after_high",
)

OF_CAPTURE: Final = (
    "drain.before_files",
    "drain.after_files",
    "drain.before_manifest",
    "drain.after_manifest",
    "drain.before_register",
    "drain.after_register",
    "merge.after_plan",
    "merge.before_history",
    "merge.after_history",
    "merge.before_current",
    "merge.after_current",
    "merge.before_result",
    "merge.after_result",
    "merge.after_ingest",
    "confirm.before_confirm",
    "confirm.after_confirm",
)

NAMES: Final = OF_A_BACKFILL + OF_CAPTURE


def reach(name: str) -> None:
    """Die here if the environment says so. Raises ValueError for a name that is not in `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"unknown failpoint {name!r}")
    wanted = os.environ.get(VARIABLE)
    if wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted == f"{name}:stop":
        os.environ.pop(VARIABLE, None)  # once: what goes on later shall go on to its end
        os.kill(os.getpid(), signal.SIGSTOP)
