"""The table whose shape changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.capture.definitions.reshaped_items import Items
from tests.support.pipeline import Pipeline


@pytest.fixture
def items(pipeline: Pipeline) -> Items:
    pipeline.execute("CREATE TABLE item (id int PRIMARY KEY, number int NOT NULL)")
    pipeline.execute("CREATE UNIQUE INDEX item_number_idx ON item (number)")
    pipeline.config = replace(pipeline.config, manage_publication=False)
    pipeline.begin()
    pipeline.sound()
    pipeline.execute("INSERT INTO item VALUES (1, 1)")
    pipeline.drain()
    return Items(pipeline)
