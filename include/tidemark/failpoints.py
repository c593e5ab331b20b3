"""Names the places at which a test can kill the process, and kills it there.

`reach(name)` does nothing unless the environment variable TIDEMARK_FAILPOINT names it:

    name           SIGKILL there: no handler, no `finally`, as when a machine is lost
    name:stop      SIGSTOP there: a process that seems dead and continues later
    each:<folder>  SIGKILL at every name, once each: the first process at a name writes a file of that name and
                   dies; later ones continue. For processes that are not started one by one, as Airflow's tasks

TIDEMARK_FALL_BACKS_FAIL, set to anything, has a merge raise an error that it would otherwise leave to Spark.

`NAMES` and `OF_MAINTENANCE` list them in the order in which a run reaches them; tests/faults walks the lists.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "TIDEMARK_FAILPOINT"
EACH: Final = "each:"
FALL_BACKS_FAIL: Final = "TIDEMARK_FALL_BACKS_FAIL"

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

OF_MAINTENANCE: Final = (
    "maintain.after_mark",
    "maintain.after_manifest",
    "maintain.after_files",
    "maintain.after_rows",
    "maintain.after_chunks",
    "maintain.after_plans",
    "maintain.after_optimize",
    "maintain.before_result",
)

OF_REPLAY: Final = ("replay.after_history", "replay.before_commit", "replay.after_commit")

# Of what brings changes and rows into the tables; maintenance runs beside it.
NAMES: Final = OF_A_BACKFILL + OF_CAPTURE
ALL: Final = NAMES + OF_MAINTENANCE + OF_REPLAY


def reach(name: str) -> None:
    """Die here if the environment says so. Raises ValueError for a name that is not in `ALL`."""
    if name not in ALL:
        raise ValueError(f"unknown failpoint {name!r}")
    chosen = os.environ.get(VARIABLE, "")
    if chosen == name or (chosen.startswith(EACH) and _is_first(chosen.removeprefix(EACH), name)):
        os.kill(os.getpid(), signal.SIGKILL)
    elif chosen == f"{name}:stop":
        os.environ.pop(VARIABLE, None)  # once: what goes on later shall go on to its end
        os.kill(os.getpid(), signal.SIGSTOP)


def fall_backs_fail() -> bool:
    """Whether an error that a merge would leave to Spark is raised instead."""
    return bool(os.environ.get(FALL_BACKS_FAIL))


def _is_first(folder: str, name: str) -> bool:
    """Whether nobody was here before; of several processes that come at the same time one is the first."""
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
