"""Compares the pipeline file with what a run works with, in the middle of the run: `ChangedFile`.

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
# How long a file is left alone that preflight refused: what it says may become right at the source.
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

    def newer(self) -> PipelineConfig | None:
        """What it says, where that is something else; looks at the file now and then."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look()
        return None if now < self._refused_until else self._newer

    def take_up(self, config: PipelineConfig) -> None:
        """The run works with this now."""
        self.config, self._newer = config, None

    def refuse(self) -> None:
        """The run goes on without what the file says, for a while."""
        self._refused_until = self._clock() + REFUSED_S

    def _look(self) -> None:
        path = Path(self.config.path)
        try:
            stat = path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            self._seen, self._newer = seen, None
            said = load(path)
        except OSError as unreadable:
            log.warning("%s is left as it was read before: %s", path, type(unreadable).__name__)
            return
        except TidemarkError as broken:
            log.warning("%s is left as it was read before: %s", path, broken)
            return
        elsewhere = [name for name in LEFT_TO_THE_NEXT_RUN if getattr(said, name) != getattr(self.config, name)]
        if elsewhere:
            log.warning("%s says something else of %s, which the next run takes up", path, ", ".join(elsewhere))
        elif said != self.config:
            log.info("%s says something else than before", path)
            self._newer = said
