"""Checks during a run whether its pipeline file has changed: `ChangedFile`.

What tells where a pipeline's data is (names, connections, slot, lake) is left to the next run, and so is a file that is
broken or not there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import TidemarkError

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
# After this time a file that preflight refused is checked again: what was wrong may have been mended at the source.
REFUSED_S: Final = 60.0
LEFT_TO_THE_NEXT_RUN: Final = (
    *("pipeline", "source_connection", "slot", "publication", "lake", "ledger_connection", "lake_connection"),
)


class ChangedFile:
    """The file of `config`, which is what the run works with."""

    def __init__(self, config: PipelineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, ...] | None = None
        self._newer: PipelineConfig | None = None
        self._refused_until = float("-inf")
        self._problem = ""

    def newer(self) -> PipelineConfig | None:
        """The file's content where it differs from `config`, else None. The file is read at most every LOOK_S."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._read()
        return None if now < self._refused_until else self._newer

    def take_up(self, config: PipelineConfig) -> None:
        """Called when the run uses this content."""
        self.config, self._newer = config, None

    def refuse(self, seconds: float = REFUSED_S) -> None:
        """Called when the run cannot use the new content: it is not offered again for so long."""
        self._refused_until = self._clock() + seconds

    def _read(self) -> None:
        path = Path(self.config.path)
        try:
            stat = path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            loaded = load(path)
        except OSError as unreadable:
            self._keep_the_old(type(unreadable).__name__)
            return
        except TidemarkError as broken:
            self._keep_the_old(str(broken))
            return
        self._seen, self._newer, self._problem = seen, None, ""
        elsewhere = [name for name in LEFT_TO_THE_NEXT_RUN if getattr(loaded, name) != getattr(self.config, name)]
        if elsewhere:
            log.warning("%s has other values of %s, which the next run uses", path, ", ".join(elsewhere))
        elif loaded != self.config:
            log.info("%s has changed, and the run uses its new content", path)
            self._newer = loaded

    def _keep_the_old(self, problem: str) -> None:
        """Log the problem once. The file is read again LOOK_S later."""
        self._newer = None
        if problem != self._problem:
            log.warning("%s cannot be read, the run goes on with its old content: %s", self.config.path, problem)
        self._problem = problem
