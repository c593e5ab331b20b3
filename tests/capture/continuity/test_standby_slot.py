"""The slot is on a standby, everything that is written on the primary (`target_session_attrs=prefer-standby`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.standby import Standby, standby_of
from tidemark.errors import DatabaseUnreachable, GenerationStale, SourceForked
from tidemark.lsn import Lsn

pytestmark = pytest.mark.thorough


@dataclass
class Both:
    primary: PostgresServer
    standby: Standby
    pipeline: Pipeline
    database: str

    def name_both(self) -> None:
        one, other = conninfo_to_dict(self.primary.conninfo(self.database)), self.standby.port
        hosts = {"host": "127.0.0.1,127.0.0.1", "port": f"{other},{one['port']}"}
        hosts["target_session_attrs"] = "prefer-standby"
        self.pipeline.close()
        self.pipeline.source = make_conninfo(**{**one, **hosts})

    def on(self, server: PostgresServer, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(server.conninfo(self.database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def write(self, *statements: str) -> None:
        with psycopg.connect(self.primary.conninfo(self.database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "primary", 18, fsync="off") as server:
        yield server


@pytest.fixture
def both(primary: PostgresServer, new_pipeline: Callable[..., Pipeline], tmp_path: Path) -> Iterator[Both]:
    source = create_database(primary, "source")
    pipeline = new_pipeline(source)
    pipeline.with_tables("public.*")
    pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY, note text)")
    pipeline.execute("INSERT INTO public.item SELECT i, 'from before' FROM generate_series(1, 5) i")
    database = str(conninfo_to_dict(source)["dbname"])
    with standby_of(primary, tmp_path / "standby", database, slots=False) as standby:
        there = Both(primary, standby, pipeline, database)
        there.name_both()
        yield there


def slots(both: Both, server: PostgresServer) -> list[str]:
    rows = both.on(server, "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'")
    return [str(name) for (name,) in rows]


def test_changes_come_from_the_standby_and_a_backfill_goes_on_beside_them(both: Both) -> None:
    pipeline = both.pipeline
    pipeline.sound()
    assert slots(both, both.primary) == []
    assert slots(both, both.standby) == [pipeline.config.slot]
    pipeline.drain()
    assert pipeline.confirm().after == pipeline.staged_lsn()
    ((confirmed,),) = both.on(both.standby, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    assert Lsn.parse(str(confirmed)) == pipeline.staged_lsn()
    both.write("INSERT INTO public.item VALUES (6, 'new')")
    (backfill,) = pipeline.plan()
    pipeline.read()
    both.write("UPDATE public.item SET note = 'changed' WHERE id = 2")
    pipeline.drain()
    assert [(row["_op"], row["id"]) for row in pipeline.staged("public.item")] == [("insert", 6), ("update", 2)]
    assert [row["id"] for row in pipeline.rows(backfill)] == [1, 2, 3, 4, 5, 6]
    claims = [c for b in pipeline.registered() for t in pipeline.manifest(b).tables for c in t.claims]
    assert [claim.backfill for claim in claims] == [backfill.backfill]
    pipeline.sound()


def test_what_the_standby_needs_is_said_by_preflight(both: Both) -> None:
    both.on(both.standby, "ALTER SYSTEM SET primary_slot_name = ''")
    both.on(both.standby, "ALTER SYSTEM SET hot_standby_feedback = off")
    both.on(both.standby, "SELECT pg_reload_conf()")
    wait_for("it is read", lambda: both.on(both.standby, "SHOW hot_standby_feedback") == [("off",)])
    report = both.pipeline.preflight()
    said = str(report)
    assert "hot_standby_feedback is off on the standby" in said
    assert "has no slot at the primary" in said
    assert slots(both, both.standby) == []


def test_a_promotion_of_that_standby_goes_on_with_its_slot(both: Both) -> None:
    pipeline = both.pipeline
    pipeline.sound()
    both.write("INSERT INTO public.item VALUES (6, 'before')")
    pipeline.drain()
    staged = pipeline.staged_lsn()
    end = both.on(both.primary, "SELECT pg_current_wal_flush_lsn()::text")[0][0]
    wait_for("the standby has all", lambda: both.standby.replayed(str(end)))
    pipeline.close()
    both.primary.stop("immediate")
    both.standby.promote()
    both.primary = both.standby
    both.write("INSERT INTO public.item VALUES (7, 'after')")
    pipeline.sound()
    pipeline.drain()
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (1, 2)
    assert pipeline.staged_lsn() > staged
    assert [row["id"] for row in pipeline.staged("public.item")] == [6, 7]
    assert not any(row.life.needs_backfill for row in pipeline.table_rows().values() if row.backfill_kind == "gap")


def test_a_standby_that_is_away_is_waited_for_and_no_slot_is_made_elsewhere(both: Both) -> None:
    pipeline = both.pipeline
    pipeline.sound()
    both.standby.stop("fast")
    both.write("INSERT INTO public.item VALUES (6, 'meanwhile')")
    with pytest.raises(DatabaseUnreachable, match="no standby answers"):
        pipeline.drain()
    assert any("no standby answers" in str(error) for error in pipeline.preflight().errors)
    assert slots(both, both.primary) == []
    both.standby.start()
    pipeline.drain()
    assert [row["id"] for row in pipeline.staged("public.item")] == [6]


def test_a_standby_that_has_what_the_primary_lost_is_not_read(both: Both, tmp_path: Path) -> None:
    """Another standby takes over that lacks the newest; ours has it, and stays where nobody else is."""
    pipeline = both.pipeline
    with standby_of(both.primary, tmp_path / "other", both.database, slots=False, name="other") as other:
        pipeline.sound()
        pipeline.drain()
        end = both.on(both.primary, "SELECT pg_current_wal_flush_lsn()::text")[0][0]
        wait_for("the other has all", lambda: other.replayed(str(end)))
        other.fall_behind()
        both.write("INSERT INTO public.item VALUES (66, 'lost with the primary')")
        end = both.on(both.primary, "SELECT pg_current_wal_flush_lsn()::text")[0][0]
        wait_for("ours has it", lambda: both.standby.replayed(str(end)))
        both.primary.stop("immediate")
        other.promote()
        both.primary = other
        both.name_both()
        both.write("INSERT INTO public.item VALUES (6, 'true')")
        with pytest.raises((GenerationStale, SourceForked)):
            pipeline.drain()
        with pytest.raises(GenerationStale, match="the standby replays timeline 1, and the primary is on 2"):
            pipeline.drain()
        assert pipeline.staged("public.item") == []
