"""Names the places at which a test can kill the process, and kills it there.

`reach(name)` does nothing unless the environment variable TIDEMARK_FAILPOINT names it:

    name           SIGKILL there: no handler, no `finally`, as when a machine is lost
    name:stop      SIGSTOP there: a process that seems dead and continues later
    each:<folder>  SIGKILL at every name, once each: the first process at a name writes a file of that name and
                   dies; later ones continue. For processes that are not started one by one, as Airflow's tasks

TIDEMARK_FALL_BACKS_FAIL, set to anything, has a merge raise an error that it would otherwise leave to Spark.

tests/support/failpoint_names.py lists the names in the order in which a run reaches them; tests/faults walks the lists.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "TIDEMARK_FAILPOINT"
EACH: Final = "each:"
FALL_BACKS_FAIL: Final = "TIDEMARK_FALL_BACKS_FAIL"


def reach(name: str) -> None:
    """Die here if the environment says so."""
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
