"""`pg_upgrade` of the source, for real: from 17 on it keeps the slot. What was marked and is proven goes on without a
row read again; each way in which the new cluster may differ from what was staged marks every table. No Spark.

From 17 to 18, and from 18 to 18 as a move to other hardware would do it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.standby import standby_of
from tests.support.upgrading import run_beside, upgraded
from tidemark.capture import drain as drain_module
from tidemark.capture import upgraded as upgrades
from tidemark.errors import SlotUnknown
from tidemark.ledger import generations, tables
from tidemark.source import upgrade_mark

pytestmark = pytest.mark.thorough

ROLE: Final = "capture"
TABLES: Final = {"public.item", "public.other", "public.parted"}


@pytest.fixture(params=[17, 18])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PostgresServer]:
    # What a vacuum writes by itself comes behind the mark like anything else.
    with running(tmp_path / "old", request.param, fsync="off", autovacuum="off") as server:
        yield server


@pytest.fixture
def pipeline(old: PostgresServer, new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Three tables, one of them partitioned, of which nothing needs a backfill, captured by a role that may log in,
    replicate and read."""
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
    return pipeline


def mark(pipeline: Pipeline) -> str:
    """Announced, and marked by a run; what the operator is told."""
    assert upgrades.announce(pipeline.config, pipeline.source)[1]
    return run(pipeline)


def run(pipeline: Pipeline) -> str:
    pipeline.drain()
    pipeline.advance(pipeline.staged_lsn())
    said, _ = upgrades.announce(pipeline.config, pipeline.source)
    return said


def to(pipeline: Pipeline, server: PostgresServer, role: str = "postgres") -> None:
    """The connection leads to the new cluster."""
    pipeline.close()
    pipeline.source = server.conninfo(str(conninfo_to_dict(pipeline.source)["dbname"]), role)


def adopted(pipeline: Pipeline) -> str:
    """What preflight says when a person says that the slot is the pipeline's."""
    with pytest.raises(SlotUnknown):
        pipeline.drain()
    return " ".join(str(finding) for finding in pipeline.preflight(says=["adopt_slot"]).findings)


def marked(pipeline: Pipeline) -> set[str]:
    return {table for table, row in pipeline.table_rows().items() if row.life.needs_backfill}


def staged(pipeline: Pipeline) -> dict[str, int]:
    """Of the new generation: by table, how many changes."""
    manifests = [pipeline.manifest(batch) for batch in pipeline.registered(2)]
    counts: dict[str, int] = {}
    for changes in (changes for manifest in manifests for changes in manifest.tables):
        counts[changes.table] = counts.get(changes.table, 0) + sum(file.rows for file in changes.files)
    return counts


def test_an_upgrade_of_what_was_staged_last_goes_on_and_nothing_is_read_again(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    superuser = pipeline.source
    pipeline.source = make_conninfo(pipeline.source, user=ROLE)
    said = mark(pipeline)
    pipeline.close()
    pipeline.source = superuser
    row = pipeline.one("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    assert f"Latest checkpoint's NextXID: 0:{row}" in said
    before = pipeline.staged_lsn()
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.execute("INSERT INTO public.item VALUES (6, 'before the first look')")
        pipeline.execute("UPDATE public.parted SET id = 2", "DELETE FROM public.item WHERE id = 1")
        to(pipeline, new, ROLE)
        pipeline.config = replace(pipeline.config, manage_publication=False)
        assert "error" not in adopted(pipeline)
        assert "The mark of the upgrade shows that none of the pipeline's tables was changed" in caplog.text
        generation = pipeline.generation()
        assert generation is not None
        assert generation.number == 2
        assert generation.start_lsn > before
        assert marked(pipeline) == set()
        pipeline.drain()
        pipeline.drain()
        assert marked(pipeline) == set(), "nor by the looks of the runs that follow"
        assert staged(pipeline) == {"public.item": 2, "public.parted": 1}
        assert not upgrades.take_back(pipeline.config, pipeline.source)[0].startswith("No upgrade")
        assert upgrades.take_back(pipeline.config, pipeline.source) == ("No upgrade was announced.", False)


def written_behind_the_mark(pipeline: Pipeline) -> None:
    """And the slot moved by hand, since pg_upgrade refuses one that has something to send."""
    pipeline.execute("DELETE FROM public.item WHERE id = 1")
    pipeline.advance()


def slot_made_again(pipeline: Pipeline) -> None:
    pipeline.drop_slot()
    pipeline.execute("DELETE FROM public.item WHERE id = 1")
    pipeline.create_slot(", false, false, true")


def no_run_marked(pipeline: Pipeline) -> None:
    upgrades.take_back(pipeline.config, pipeline.source)
    upgrades.announce(pipeline.config, pipeline.source)
    pipeline.advance()


def never_announced(pipeline: Pipeline) -> None:
    upgrades.take_back(pipeline.config, pipeline.source)
    pipeline.advance()


def older_ledger(pipeline: Pipeline) -> None:
    """It knows another run as the last one."""
    pipeline.ledger_query("UPDATE tidemark.batches SET attempt = gen_random_uuid() WHERE heartbeat_lsn IS NOT NULL")


BEFORE: Final = {
    written_behind_the_mark: "transactions came behind the mark before the old cluster was shut down",
    slot_made_again: "transactions came behind the mark before the old cluster was shut down",
    no_run_marked: "no run could mark the source alone",
    never_announced: "every table is marked",
    older_ledger: "the mark that it has is not the one of the run that staged last",
}


@pytest.mark.parametrize("happens", BEFORE, ids=lambda happens: happens.__name__)
def test_what_the_mark_does_not_cover_marks_every_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, happens: Callable[[Pipeline], None]
) -> None:
    mark(pipeline)
    happens(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        said = adopted(pipeline)
        assert BEFORE[happens] in said
        assert marked(pipeline) == TABLES


# --- what becomes of the new cluster before anybody looks -------------------------------------------------------------


def slot_made_behind_a_change(pipeline: Pipeline) -> None:
    pipeline.drop_slot()
    pipeline.execute("DELETE FROM public.item WHERE id = 1")
    make_slot(pipeline)


def slot_whose_wal_was_thrown_away(pipeline: Pipeline) -> None:
    """Before it was made."""
    pipeline.drop_slot()
    pipeline.execute("DELETE FROM public.item WHERE id = 1", "SELECT pg_switch_wal()", "CHECKPOINT")
    make_slot(pipeline)


def slot_made_behind_no_transaction(pipeline: Pipeline) -> None:
    """Behind several pages of WAL all the same."""
    pipeline.drop_slot()
    for size in (20_000, 100, 8_000):
        pipeline.execute(f"SELECT pg_logical_emit_message(false, 'of a neighbour', repeat('x', {size}), true)")
    make_slot(pipeline)


def nothing_shows_who_made_the_slot(pipeline: Pipeline) -> None:
    pipeline.execute("ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()")
    wait_for("it is off", lambda: pipeline.one("SHOW full_page_writes") == "off")


def make_slot(pipeline: Pipeline) -> None:
    pipeline.sql(f"SELECT pg_create_logical_replication_slot('{pipeline.config.slot}', 'pgoutput')")


BEHIND: Final[dict[Callable[[Pipeline], None], str]] = {
    slot_made_behind_a_change: "transactions wrote to the new cluster before the slot was made",
    slot_whose_wal_was_thrown_away: "the first WAL of the new cluster is gone",
    slot_made_behind_no_transaction: "pg_upgrade did not make the slot",
    nothing_shows_who_made_the_slot: "the server runs with full_page_writes = off",
}


@pytest.mark.parametrize("happens", BEHIND, ids=lambda happens: happens.__name__)
def test_a_slot_that_pg_upgrade_may_not_have_made_marks_every_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, happens: Callable[[Pipeline], None]
) -> None:
    mark(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        happens(pipeline)
        assert BEHIND[happens] in adopted(pipeline)
        assert marked(pipeline) == TABLES


@pytest.mark.parametrize("crashes", [False, True], ids=["shut down", "crashed"])
def test_a_slot_that_was_made_after_pg_resetwal_marks_every_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, crashes: bool
) -> None:
    """The WAL begins anew once more, behind what was written. Of a server that crashed, it does so with the transaction
    id that pg_upgrade left."""
    mark(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        pipeline.drop_slot()
        pipeline.execute("DELETE FROM public.item WHERE id = 1")
        pipeline.close()
        if crashes:
            new.stop("immediate")
        else:
            new.stop()
        run_beside(new, "pg_resetwal", "--force", str(new.data))
        new.start()
        to(pipeline, new)
        make_slot(pipeline)
        assert "pg_upgrade did not make the slot" in adopted(pipeline)
        assert marked(pipeline) == TABLES


def test_a_death_as_the_generation_is_opened_loses_nothing_of_the_proof(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between generation.json and the ledger's row; and once more before the mark's end."""
    mark(pipeline)
    pipeline.close()

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        with pytest.raises(SlotUnknown):
            pipeline.drain()
        for module, name in ((generations, "open_generation"), (upgrade_mark, "end")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, dies)
                with pytest.raises(KeyboardInterrupt):
                    pipeline.preflight(says=["adopt_slot"])
        pipeline.preflight(says=["adopt_slot"])
        pipeline.drain()
        pipeline.drain()
        assert marked(pipeline) == set()
        with psycopg.connect(pipeline.source) as session:
            assert [mark.is_done for mark in upgrade_mark.marks(session)] == [True]
        upgrades.announce(pipeline.config, pipeline.source)
        assert "The source is marked" in run(pipeline), "a mark of the new server's own is not ended"


@pytest.mark.parametrize(
    "then",
    [{"gone": [[99, 700]]}, {"toast": 0}],
    ids=["a look that missed a partition", "a look of before TOAST tables were noted"],
)
def test_what_a_look_has_of_its_own_time_marks_no_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, then: dict[str, Any]
) -> None:
    mark(pipeline)
    pipeline.ledger_query(f"UPDATE tidemark.tables SET fingerprint = fingerprint || '{json.dumps(then)}'::jsonb")
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        adopted(pipeline)
        assert marked(pipeline) == set()


def test_an_upgraded_copy_from_before_the_mark_marks_every_table(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path
) -> None:
    """A standby that is behind, promoted and upgraded: its slot stands far above what is staged."""
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    upgrades.announce(pipeline.config, pipeline.source)
    run(pipeline)
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
            assert "the mark that it has is not the one of the run that staged last" in adopted(pipeline)
            assert marked(pipeline) == TABLES


def altered(pipeline: Pipeline) -> None:
    pipeline.execute("ALTER TABLE public.item ADD COLUMN random double precision DEFAULT random()")


def published_again(pipeline: Pipeline) -> None:
    publication = pipeline.config.publication
    pipeline.execute(f"ALTER PUBLICATION {publication} DROP TABLE public.item", "DELETE FROM public.item WHERE id = 1")
    pipeline.execute(f"ALTER PUBLICATION {publication} ADD TABLE public.item")


def attached_again(pipeline: Pipeline) -> None:
    pipeline.execute("ALTER TABLE public.parted DETACH PARTITION public.part", "DELETE FROM public.part")
    pipeline.execute("ALTER TABLE public.parted ATTACH PARTITION public.part FOR VALUES FROM (0) TO (100)")


AFTER: Final = {altered: {"public.item"}, published_again: TABLES, attached_again: TABLES}


@pytest.mark.parametrize("happens", AFTER, ids=lambda happens: happens.__name__)
def test_what_is_altered_between_the_upgrade_and_the_first_look_is_marked(
    pipeline: Pipeline, old: PostgresServer, tmp_path: Path, happens: Callable[[Pipeline], None]
) -> None:
    mark(pipeline)
    pipeline.close()
    with upgraded(old, tmp_path / "new") as new:
        to(pipeline, new)
        happens(pipeline)
        adopted(pipeline)
        assert marked(pipeline) == AFTER[happens]
        assert {row.backfill_kind for row in pipeline.table_rows().values()} - {None} == {tables.GAP}


def test_two_pipelines_of_one_role_each_find_their_own_mark(
    pipeline: Pipeline, old: PostgresServer, new_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    second = new_pipeline(pipeline.source)
    second.with_tables("public.*")
    second.capture()
    second.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
        " backfill_since = NULL"
    )
    for one in (pipeline, second):
        upgrades.announce(one.config, one.source)
    for one in (pipeline, second):
        run(one)
    # What one's heartbeat brings, the other's slot has to send as well. As docs/operations.md has it.
    said, _ = upgrades.announce(second.config, second.source)
    told = said.partition("NextXID: 0:")[2].partition('"')[0]
    advance = (
        "SELECT pg_replication_slot_advance('{}', pg_current_wal_flush_lsn())"
        " WHERE pg_snapshot_xmax(pg_current_snapshot()) = '{}'"
    )
    assert pipeline.sql(advance.format(pipeline.config.slot, int(told) - 1)) == []
    assert len(pipeline.sql(advance.format(pipeline.config.slot, told))) == 1
    pipeline.close()
    second.close()
    with upgraded(old, tmp_path / "new") as new:
        for one in (second, pipeline):
            to(one, new)
            adopted(one)
            assert marked(one) == set()


def test_a_run_beside_another_transaction_marks_nothing(pipeline: Pipeline) -> None:
    upgrades.announce(pipeline.config, pipeline.source)
    pipeline.execute("BEGIN", "INSERT INTO public.item VALUES (9, 'open')", session="application")
    assert "Stop everything that writes" in run(pipeline)
    pipeline.execute("COMMIT", session="application")
    assert "The source is marked" in run(pipeline)


def test_what_is_altered_between_a_runs_look_and_its_heartbeat_is_not_covered(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrades.announce(pipeline.config, pipeline.source)
    emit = drain_module.emit_heartbeat

    def alter(*about: Any, **options: Any) -> Any:
        attached_again(pipeline)
        return emit(*about, **options)

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "emit_heartbeat", alter)
        assert "Stop everything that writes" in run(pipeline)
    assert "The source is marked" in run(pipeline)


def test_a_role_with_an_application_name_of_its_own_keeps_it(pipeline: Pipeline) -> None:
    database = conninfo_to_dict(pipeline.source)["dbname"]
    pipeline.execute(f"ALTER ROLE postgres IN DATABASE {database} SET application_name = 'somebody'")
    said, done = upgrades.announce(pipeline.config, pipeline.source)
    assert not done
    assert "RESET application_name" in said
