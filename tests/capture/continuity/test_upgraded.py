"""`pg_upgrade` of the source, for real: from 17 on it keeps the slot. A person says so, and the capture continues
without a backfill; what shows that the person is wrong changes nothing. No Spark.

From 17 to 18, and from 18 to 18 as a move to other hardware would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.standby import standby_of
from tests.support.upgrading import upgraded
from tidemark.capture import pg_upgrade
from tidemark.capture.continuity import discontinuity
from tidemark.config import TableRule
from tidemark.errors import SlotBusy, SlotMissing, SlotOfAnother, SlotUnknown, SourceReplaced
from tidemark.formats.manifest import KeyPart
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.reading import proofs
from tidemark.observe.status import read_status

pytestmark = pytest.mark.thorough

ROLE: Final = "capture"
TABLES: Final = {"public.item", "public.other", "public.parted"}


@pytest.fixture(params=[17, 18])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "old", request.param, fsync="off", autovacuum="off") as server:
        yield server


@pytest.fixture
def pipeline(old: PostgresServer, new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Three tables, one of them partitioned, of which nothing needs a backfill, captured by a role that may log in,
    replicate and read. A run has staged all of their rows, and the slot stands behind it."""
    pipeline = new_pipeline(create_database(old, "source"))
    pipeline.with_tables("public.*")
    pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY, note text)", "CREATE TYPE mood AS ENUM ('a', 'b')")
    pipeline.execute("CREATE TABLE public.other (id int PRIMARY KEY, mood mood, more int DEFAULT 7)")
    pipeline.execute("ALTER TABLE public.other ADD COLUMN late int DEFAULT 8")
    pipeline.execute("CREATE TABLE public.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    pipeline.execute("CREATE TABLE public.part PARTITION OF public.parted FOR VALUES FROM (0) TO (100)")
    pipeline.capture()
    pipeline.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD '{old.password}'")
    pipeline.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
    pipeline.execute("INSERT INTO public.item SELECT i, 'before' FROM generate_series(1, 5) i")
    pipeline.execute("INSERT INTO public.other VALUES (1, 'a')", "INSERT INTO public.parted VALUES (1)")
    run(pipeline)
    return pipeline


def run(pipeline: Pipeline) -> None:
    """Drained and confirmed."""
    pipeline.drain()
    pipeline.advance(pipeline.staged_lsn())


def to(pipeline: Pipeline, server: PostgresServer, role: str = "postgres") -> None:
    """The connection leads to the new cluster."""
    pipeline.close()
    pipeline.source = server.conninfo(str(conninfo_to_dict(pipeline.source)["dbname"]), role)


def say(pipeline: Pipeline) -> tuple[str, bool]:
    return pg_upgrade.continue_upgraded(pipeline.task(holder="somebody"), who="somebody")


def refused(pipeline: Pipeline) -> str:
    """What `tidemark upgraded` answers; it must have changed nothing."""
    before = known(pipeline)
    said, done = say(pipeline)
    assert not done
    assert said.startswith("Nothing was done")
    assert known(pipeline) == before
    return said


def known(pipeline: Pipeline) -> list[object]:
    """What the ledger and the lake have of generations, marks, looks, relations and belongings."""
    queries = ("generations", "tables", "relations", "belongings", "guards", "parts")
    rows = [
        pipeline.ledger_query(
            f"SELECT to_jsonb(t) FROM tidemark.{table} t WHERE pipeline = %s", pipeline.config.pipeline
        )
        for table in queries
    ]
    return [sorted(map(str, of_table)) for of_table in rows] + [pipeline.store.list(pipeline.config.pipeline)]


def marked(pipeline: Pipeline) -> set[str]:
    return {table for table, row in pipeline.table_rows().items() if row.life.needs_backfill}


def staged(pipeline: Pipeline) -> dict[str, int]:
    """Of the new generation: by table, how many changes."""
    manifests = [pipeline.manifest(batch) for batch in pipeline.registered(2)]
    counts: dict[str, int] = {}
    for changes in (changes for manifest in manifests for changes in manifest.tables):
        counts[changes.table] = counts.get(changes.table, 0) + sum(file.rows for file in changes.files)
    return counts


# --- the person is right ----------------------------------------------------------------------------------------------


def test_the_capture_goes_on_and_every_proof_is_withdrawn(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    before = pipeline.staged_lsn()
    with pipeline.ledger_connection() as ledger:
        proofs.cut(ledger, "public.item", (), [KeyPart(None, None)], 5)
    pipeline.ledger_query("UPDATE tidemark.parts SET proven_at = now(), proven_lsn = '0/1'")
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.execute("INSERT INTO public.item VALUES (6, 'before the first look')")
        pipeline.execute("UPDATE public.parted SET id = 2", "DELETE FROM public.item WHERE id = 1")
        to(pipeline, new, ROLE)
        pipeline.config = replace(pipeline.config, manage_publication=False)
        with pytest.raises(SlotUnknown, match="say instead, and first of all: `tidemark upgraded"):
            pipeline.drain()
        status = read_status(pipeline.config, source=pipeline.source, ledger=pipeline.ledger)
        assert [(one.kind, one.group) for one in status.health.of("red")] == [("slot", "SlotUnknown")]
        said, done = say(pipeline)
        assert done
        assert "need a backfill" not in said
        generation = pipeline.generation()
        assert generation is not None
        assert generation.number == 2
        assert generation.start_lsn > before
        pipeline.drain()
        pipeline.sound()
        pipeline.drain()
        assert marked(pipeline) == set(), "nor by the looks of the runs that follow"
        assert staged(pipeline) == {"public.item": 2, "public.parted": 1}
        with pipeline.ledger_connection() as ledger:
            assert [(one.parts, one.proven) for one in proofs.verified(ledger).values()] == [(1, 0)]
        assert "so it is the captured one" in refused(pipeline)


def test_names_and_masks_of_before_hold_on_the_new_server(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    """A table and a masked column that were renamed since the file named them."""
    pipeline.with_tables(TableRule("public.*", mask={"note": "null"}, line=3))
    pipeline.sound()
    pipeline.execute("INSERT INTO public.item VALUES (6, 'masked')")
    run(pipeline)
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
        " backfill_since = NULL"
    )
    pipeline.execute("ALTER TABLE public.item RENAME note TO remark", "ALTER TABLE public.other RENAME TO others")
    run(pipeline)
    pipeline.sound()
    run(pipeline)
    assert marked(pipeline) == set()
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        assert say(pipeline)[1]
        pipeline.execute("INSERT INTO public.item VALUES (7, 'secret')", "INSERT INTO public.others VALUES (2, 'b')")
        pipeline.drain()
        pipeline.sound()
        assert set(pipeline.table_rows()) == TABLES
        assert marked(pipeline) == set()
        assert staged(pipeline) == {"public.item": 1, "public.other": 1}
        (batch,) = pipeline.registered(2)
        files = {t.table: [f.path for f in t.files] for t in pipeline.manifest(batch).tables}
        assert all(b"secret" not in pipeline.store.read(path) for path in files["public.item"])


def test_without_a_word_every_table_is_read_again(pipeline: Pipeline, old: PostgresServer, tmp_path: Path) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        with pytest.raises(SlotUnknown):
            pipeline.drain()
        said = str(pipeline.preflight(says=["adopt_slot"]))
        assert "The source is no longer the same database" in said
        assert marked(pipeline) == TABLES
        assert "so it is the captured one" in refused(pipeline)


@pytest.mark.parametrize("dies_in", ["the first transaction", "the second"])
def test_a_death_on_the_way_loses_no_row(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    """A repeated word finishes it; without one every table is read again."""
    pipeline.close()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        with monkeypatch.context() as patch:
            if dies_in == "the second":
                patch.setattr(discontinuity.generations, "open_generation", die)
            else:
                patch.setattr(proofs, "withdraw", die)
            with pytest.raises(KeyboardInterrupt):
                say(pipeline)
        if dies_in == "the second":
            # generation.json is there, and the slot is known: the next run opens the generation from it.
            pipeline.drain()
        else:
            with pytest.raises(SlotUnknown):
                pipeline.drain()
            assert say(pipeline)[1]
            pipeline.drain()
        assert marked(pipeline) == set()
        generation = pipeline.generation()
        assert generation is not None
        assert generation.number == 2


def test_a_death_between_the_two_transactions_marks_every_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.close()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        with monkeypatch.context() as patch:
            patch.setattr(pg_upgrade, "open_next", die)
            with pytest.raises(KeyboardInterrupt):
                say(pipeline)
        with pytest.raises(SourceReplaced):
            pipeline.drain()
        assert marked(pipeline) == TABLES


# --- what shows that the person is wrong ------------------------------------------------------------------------------


def test_the_captured_server_is_refused(pipeline: Pipeline) -> None:
    assert "so it is the captured one" in refused(pipeline)


def test_a_server_that_was_restored_from_a_dump_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    """Its transaction ids begin anew. Its WAL is brought above what was staged, and its slot was made by hand."""
    staged_lsn = pipeline.staged_lsn()
    with running(tmp_path / "dump", 18, fsync="off") as other:
        database = str(conninfo_to_dict(pipeline.source)["dbname"])
        with psycopg.connect(other.conninfo(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"'.encode())
        to(pipeline, other)
        for name in ("item", "other", "parted"):
            pipeline.execute(f"CREATE TABLE public.{name} (id int PRIMARY KEY, note text)")
        publication = f"CREATE PUBLICATION {pipeline.config.publication} FOR ALL TABLES"
        slot = f"SELECT pg_create_logical_replication_slot('{pipeline.config.slot}', 'pgoutput')"
        if pipeline.flush_lsn() < staged_lsn:
            pipeline.sql(publication, slot)
            assert "below" in refused(pipeline)
            pipeline.drop_slot()
            while pipeline.flush_lsn() < staged_lsn:
                pipeline.sql("SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', 1000000), true)")
            pipeline.sql(slot)
        else:
            pipeline.sql(publication, slot)
        assert "is staged: the next transaction of that state is" in refused(pipeline)


def no_slot(pipeline: Pipeline) -> None:
    pipeline.drop_slot()


def another_kind(pipeline: Pipeline) -> None:
    pipeline.drop_slot()
    pipeline.sql(f"SELECT pg_create_physical_replication_slot('{pipeline.config.slot}')")


@pytest.mark.parametrize(
    ("happens", "error"), [(no_slot, SlotMissing), (another_kind, SlotOfAnother)], ids=["missing", "physical"]
)
def test_a_slot_that_no_run_could_read_is_refused(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, happens: Callable[[Pipeline], None], error: type[Exception]
) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        happens(pipeline)
        before = known(pipeline)
        with pytest.raises(error):
            say(pipeline)
        assert known(pipeline) == before


def test_a_slot_that_somebody_reads_is_refused(pipeline: Pipeline, old: PostgresServer, tmp_path: Path) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        reads = psycopg.connect(make_conninfo(pipeline.source, replication="database"), autocommit=True)
        reads.pgconn.exec_(
            f"START_REPLICATION SLOT {pipeline.config.slot} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{pipeline.config.publication}')".encode()
        )
        active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{pipeline.config.slot}'"
        wait_for("somebody reads the slot", lambda: pipeline.one(active))
        before = known(pipeline)
        with pytest.raises(SlotBusy):
            say(pipeline)
        assert known(pipeline) == before
        reads.close()


def test_a_slot_that_preflight_was_making_is_refused(pipeline: Pipeline, old: PostgresServer, tmp_path: Path) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.drop_slot()
        pipeline.execute("DELETE FROM public.item WHERE id = 1")
        pipeline.create_slot()
        assert "preflight created the slot" in refused(pipeline)


def test_a_ledger_that_is_older_than_the_lake_is_refused(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    pipeline.execute("INSERT INTO public.item VALUES (8, 'the ledger forgets it')")
    run(pipeline)
    forget_the_last_batch(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        assert "the ledger is older than the lake" in refused(pipeline)


def forget_the_last_batch(pipeline: Pipeline) -> None:
    last = pipeline.registered()[-1]
    for table in ("batch_tables", "batches"):
        pipeline.ledger_query(f"DELETE FROM tidemark.{table} WHERE end_lsn = %s", last.end_lsn)
    pipeline.ledger_query("UPDATE tidemark.generations SET staged_lsn = %s", last.start_lsn)


def test_an_upgraded_copy_from_before_the_last_change_is_refused(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    """A standby that is behind, promoted and upgraded: its slot stands above what is staged."""
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    with standby_of(old, tmp_path / "copy", database, settings={"autovacuum": "off"}) as copy:

        def carried_over() -> bool:
            pipeline.sql("SELECT pg_log_standby_snapshot()")
            run(pipeline)
            return copy.has_slot(pipeline.config.slot)

        wait_for("the slot was carried over", carried_over)
        wait_for("the copy has all", lambda: copy.replayed(str(pipeline.flush_lsn())))
        copy.fall_behind()
        pipeline.execute("INSERT INTO public.item VALUES (9, 'only the lake has it')")
        run(pipeline)
        pipeline.close()
        old.stop()
        copy.promote()
        with psycopg.connect(copy.conninfo(database), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (pipeline.config.slot,)
            )
        with upgraded(copy, tmp_path / "new") as new:
            to(pipeline, new)
            assert "is staged: the next transaction of that state is" in refused(pipeline)


def published_again(pipeline: Pipeline) -> None:
    publication = pipeline.config.publication
    pipeline.execute(f"ALTER PUBLICATION {publication} DROP TABLE public.item", "DELETE FROM public.item WHERE id = 1")
    pipeline.execute(f"ALTER PUBLICATION {publication} ADD TABLE public.item")


def attached_again(pipeline: Pipeline) -> None:
    pipeline.execute("ALTER TABLE public.parted DETACH PARTITION public.part", "DELETE FROM public.part")
    pipeline.execute("ALTER TABLE public.parted ATTACH PARTITION public.part FOR VALUES FROM (0) TO (100)")


@pytest.mark.parametrize("happens", [published_again, attached_again], ids=lambda happens: happens.__name__)
def test_a_publication_or_partition_that_was_altered_since_is_refused(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, happens: Callable[[Pipeline], None]
) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        happens(pipeline)
        assert "was altered since the upgrade" in refused(pipeline)


def test_a_table_that_was_altered_since_needs_a_backfill_and_no_other_one(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.execute("ALTER TABLE public.item ADD COLUMN random double precision DEFAULT random()")
        said, done = say(pipeline)
        assert done
        assert "1 table changed since the last run and need" in said
        pipeline.drain()
        assert marked(pipeline) == {"public.item"}
        assert {row.backfill_kind for row in pipeline.table_rows().values()} - {None} == {backfill_marks.GAP}


def test_tables_that_were_all_made_again_are_refused(pipeline: Pipeline, old: PostgresServer, tmp_path: Path) -> None:
    pipeline.with_tables("public.item")
    pipeline.sound()
    run(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.execute("ALTER TABLE public.item ALTER id TYPE bigint")
        assert "no table has the OID, the file and the columns of the last run" in refused(pipeline)
