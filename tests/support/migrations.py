"""Adds a made-up second migration, so that tests have a ledger of an older version and code of a newer one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from tidemark.ledger import migrations

# The number of the made-up migration: one more than the last one of this version.
NEWER: Final = migrations._scripts()[-1][0] + 1

SCRIPT: Final = """
ALTER TABLE tidemark.tables ADD COLUMN made_up text NOT NULL DEFAULT 'from before';
CREATE TABLE tidemark.made_up (pipeline text PRIMARY KEY REFERENCES tidemark.pipelines);
INSERT INTO tidemark.made_up SELECT pipeline FROM tidemark.pipelines;
"""


@contextmanager
def newer_version(script: str = SCRIPT) -> Iterator[None]:
    """The block runs as a version of Tidemark that has one migration more."""
    scripts = [*migrations._scripts(), (NEWER, script)]
    with patch.object(migrations, "_scripts", lambda: scripts):
        yield
