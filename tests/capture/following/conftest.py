from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.support.following import Follower
from tests.support.pipeline import Pipeline


@pytest.fixture
def following(pipeline: Pipeline) -> Iterator[Callable[..., Follower]]:
    """Starts a drain that follows the source of `pipeline`."""
    started: list[Follower] = []

    def start(
        run_id: str = "following",
        *,
        every_s: float = 0.05,
        of: Any = pipeline,
        file: Any = None,
        began_at: datetime | None = None,
    ) -> Follower:
        started.append(Follower(of, run_id, every_s, file, began_at))
        return started[-1]

    yield start
    for follower in started:
        follower.is_over = True
        follower.thread.join(60)
