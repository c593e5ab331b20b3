"""A publication that was gone, or called otherwise, while something changed (R8): before version 18 PostgreSQL sends
nothing more, from 18 on all but what changed then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.support.pipeline import Pipeline
from tidemark.config import TableRule
from tidemark.errors import PublicationWasMissing

AGAIN = {
    "dropped": ("DROP PUBLICATION {it}", "CREATE PUBLICATION {it} FOR TABLE item WITH (publish_via_partition_root)"),
    "renamed": ("ALTER PUBLICATION {it} RENAME TO aside", "ALTER PUBLICATION aside RENAME TO {it}"),
}
HOWS = [pytest.param("dropped"), pytest.param("renamed", marks=pytest.mark.thorough)]


def made_again(items: Pipeline, how: str) -> None:
    """A captured table with a change from before, one from the time without a publication, and one from behind."""
    items.config = replace(items.config, manage_publication=False, tables=(TableRule("public.item"),))
    items.execute("CREATE TABLE item (id int PRIMARY KEY)")
    items.begin()
    items.sound()
    items.execute("INSERT INTO item VALUES (1)")
    items.drain()
    away, back = (statement.format(it=items.config.publication) for statement in AGAIN[how])
    items.execute(away, "INSERT INTO item VALUES (2)", back, "INSERT INTO item VALUES (3)")


def ids(items: Pipeline) -> list[int]:
    return [row["id"] for row in items.staged("public.item")]


@pytest.mark.thorough
@pytest.mark.walks("PublicationWasMissing")
@pytest.mark.parametrize("how", AGAIN)
def test_the_slot_is_given_up_as_the_error_says(
    postgres16: PostgresServer, new_pipeline: Callable[..., Pipeline], how: str
) -> None:
    source = create_database(postgres16, "source")
    items = new_pipeline(source)
    made_again(items, how)
    for _ in range(2):
        with pytest.raises(PublicationWasMissing) as missing:
            items.drain()
    assert f"SELECT pg_drop_replication_slot('{items.config.slot}')" in str(missing.value)
    items.drop_slot()
    assert any("stands at" in str(finding) for finding in items.preflight().errors), "the gap is said"
    items.sound()
    items.execute("INSERT INTO item VALUES (4)")
    items.drain()
    assert [manifest.tables[0].table for manifest in map(items.manifest, items.registered(2))] == ["public.item"]
    assert items.table_row("public.item").life.needs_backfill
    items.drop_slot()
    items.close()
    drop_database(postgres16, source)


@pytest.mark.parametrize("how", HOWS)
def test_what_is_left_out_from_18_on_marks_the_tables(pipeline: Pipeline, how: str) -> None:
    made_again(pipeline, how)
    pipeline.ledger_query("UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL RETURNING 1")
    pipeline.drain()
    assert ids(pipeline) == [1, 3]
    assert pipeline.table_row("public.item").life.needs_backfill
