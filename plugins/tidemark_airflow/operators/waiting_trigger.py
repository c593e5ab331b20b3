"""Waits in the triggerer until a pipeline has something to do: pipeline file -> one event {"waiting", "reason",
"looked_at"}.

It carries the file's path and no secret: connections are resolved in the triggerer, each time it looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark_airflow.connections import conninfo_in_triggerer
from tidemark_airflow.failures import guarded

LOOK_EVERY_S = 5.0


class ChangesTrigger(BaseTrigger):
    """Looks every few seconds, for `wait_s` at most; then says that nothing waits."""

    def __init__(self, *, path: str, wait_s: float) -> None:
        super().__init__()
        self.path = path
        self.wait_s = wait_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path, "wait_s": self.wait_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        deadline = time.monotonic() + self.wait_s
        while not (event := await self._check())["waiting"] and time.monotonic() < deadline:
            await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))
        yield TriggerEvent(event)

    async def _check(self) -> dict[str, Any]:
        from tidemark.capture.waiting import changes_waiting
        from tidemark.config.file_reader import load

        config = await asyncio.to_thread(guarded(load), self.path)
        source = await conninfo_in_triggerer(config.source_connection)
        ledger = await conninfo_in_triggerer(config.ledger_connection)
        looked_at = datetime.now(UTC)
        look = await asyncio.to_thread(guarded(changes_waiting), config, source=source, ledger=ledger)
        return {"waiting": look.waiting, "reason": look.reason, "looked_at": looked_at.isoformat()}
