"""A slot that a test made by hand, and that its pipeline shall take for its own."""

from __future__ import annotations

import psycopg

from tidemark.config import PipelineConfig


def note(config: PipelineConfig, source: str, ledger: str) -> None:
    """As preflight notes it before it makes one; the slot's server and database are those of `source`."""
    with psycopg.connect(source, autocommit=True, client_encoding="UTF8") as at_source:
        row = at_source.execute(
            "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"
        ).fetchone()
    assert row is not None
    with psycopg.connect(ledger, autocommit=True) as book:
        book.execute("INSERT INTO tidemark.pipelines (pipeline) VALUES (%s) ON CONFLICT DO NOTHING", (config.pipeline,))
        book.execute(
            "INSERT INTO tidemark.belongings (pipeline, kind, system_identifier, database, name, origin) "
            "VALUES (%s, 'slot', %s, %s, %s, 'made') ON CONFLICT DO NOTHING",
            (config.pipeline, *row, config.slot),
        )
