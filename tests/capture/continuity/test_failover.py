"""A real pair of servers: what a pipeline does when its source is another one from now on. No Spark.

The standby is promoted while the old primary is down, or still up where that is the point. What only the old primary
ever knew is lost, and the lake may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support.pipeline import Pipeline
from tests.support.remedies import Told
from tests.support.standby import Standby, standby_of
from tidemark.backfill import exported_snapshot
from tidemark.backfill.range_reading import ReadResult
from tidemark.backfill.read_sessions import ImportedSnapshot
from tidemark.backfill.verifying import VerifyRequest, plan_verify
from tidemark.errors import DatabaseRefused, DatabaseUnreachable, SourceForked, SourceLeftBehind, SourceReplaced
from tidemark.formats import layout
from tidemark.ledger.captured import backfill_marks
from tidemark.ledger.reading import backfills
from tidemark.run import Run
from tidemark.staging.batch_writer import read_table


@dataclass
class Pair:
    """A primary with a pipeline, and its standby, which has the slot."""

    primary: PostgresServer
    standby: Standby
    pipeline: Pipeline
    database: str

    def carry_over(self, *others: Standby) -> None:
        """Until all standbys have the slot for good, and the one all that is staged."""

        def carried_over() -> bool:
            self.pipeline.sql("SELECT pg_log_standby_snapshot()")
            self.pipeline.drain()
            self.pipeline.advance(self.pipeline.staged_lsn())
            return all(standby.has_slot(self.pipeline.config.slot) for standby in (self.standby, *others))

        wait_for("the slot was carried over", carried_over)
        self.catch_up()

    def catch_up(self) -> None:
        wait_for("the standby has all", lambda: self.standby.replayed(str(self.pipeline.flush_lsn())))

    def promote(self, *, stop: bool = True) -> None:
        self.pipeline.close()
        if stop:
            self.primary.stop("immediate")
        self.standby.promote()
        self.pipeline.source = self.standby.conninfo(self.database)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    with running(tmp_path / "primary", 18, fsync="off") as server:
        yield server


@pytest.fixture
def captured_there(primary: PostgresServer, new_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Three tables with a key and one without, captured by a slot that preflight made."""
    pipeline = new_pipeline(create_database(primary, "source"))
    pipeline.with_tables("public.*", "public.log")  # a pattern takes no table without replica identity
    pipeline.execute("CREATE TABLE public.item (id int PRIMARY KEY, note text)")
    pipeline.execute("CREATE TABLE public.line (item int, number bigint, note text, PRIMARY KEY (number, item))")
    pipeline.execute("CREATE TABLE public.other (id int PRIMARY KEY)", "CREATE TABLE public.log (note text)")
    pipeline.capture()
    pipeline.execute("INSERT INTO public.item SELECT i, 'common' FROM generate_series(1, 5) i")
    pipeline.execute("INSERT INTO public.line SELECT i, i, 'common' FROM generate_series(1, 5) i")
    pipeline.execute("INSERT INTO public.other VALUES (1)")
    pipeline.drain()
    return pipeline


@pytest.fixture
def pair(primary: PostgresServer, captured_there: Pipeline, tmp_path: Path) -> Iterator[Pair]:
    database = str(conninfo_to_dict(captured_there.source)["dbname"])
    with standby_of(primary, tmp_path / "standby", database) as standby:
        pair = Pair(primary, standby, captured_there, database)
        pair.carry_over()
        yield pair


def marked(pipeline: Pipeline) -> dict[str, Any]:
    """The tables that need a backfill: the keys, or the kind of those that need all rows."""
    return {
        table: row.backfill_kind if row.lost_keys is None else sorted(tuple(key) for key in row.lost_keys)
        for table, row in pipeline.table_rows().items()
        if row.life.needs_backfill
    }


def lose_some(pair: Pair) -> None:
    """What the standby never hears of, and the lake has."""
    pair.standby.fall_behind()
    pair.pipeline.execute("UPDATE public.item SET note = 'lost' WHERE id = 2")
    pair.pipeline.execute("INSERT INTO public.item VALUES (9, 'lost'); UPDATE public.line SET item = 50 WHERE item = 5")
    pair.pipeline.execute("DELETE FROM public.item WHERE id = 3")
    pair.pipeline.drain()


def test_what_a_promotion_lost_is_named_and_only_its_rows_are_read_again(pair: Pair) -> None:
    pipeline = pair.pipeline
    lose_some(pair)
    staged = pipeline.staged_lsn()
    pair.promote()
    pipeline.execute("INSERT INTO public.item VALUES (6, 'after the promotion')")
    with pytest.raises(SourceForked, match=r"lost 3 transactions .*public\.item, public\.line") as raised:
        pipeline.drain()
    assert "public.item (3 rows), public.line (2 rows)" in str(raised.value)
    assert marked(pipeline) == {
        "public.item": [("2",), ("3",), ("9",)],
        "public.line": [("5", "5"), ("5", "50")],
    }
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (2, 2)
    assert generation.start_lsn < staged
    with pipeline.store.open(layout.lost_file(pipeline.config.pipeline, 2)) as file:
        assert pq.read_table(file)["tables"].to_pylist() == [
            ["public.item"],
            ["public.item", "public.line"],
            ["public.item"],
        ]
    pipeline.drain()
    said = " ".join(str(finding) for finding in pipeline.sound().findings)
    assert "public.item needs a backfill: the source lost changes of 3 rows: " in said
    assert f"a run of {pipeline.config.pipeline}_backfill that names no table reads these rows alone" in said
    (backfill,) = [b for b in pipeline.plan() if b.table == "public.item"]
    assert (backfill.mode, backfill.sweeps) == ("keys", True)
    pipeline.read()
    assert [row["id"] for row in pipeline.rows(backfill)] == [2, 3]
    pipeline.drain()
    (sweep,) = [
        s
        for b in pipeline.registered(2)
        for t in pipeline.manifest(b).tables
        for s in t.sweeps
        if s.backfill == backfill.backfill
    ]
    assert sorted(sweep.keys or ()) == [("2",), ("3",), ("9",)]


@pytest.mark.thorough
def test_a_lost_value_that_may_have_moved_along_with_a_key_asks_for_all_rows(pair: Pair) -> None:
    """The move sends the key and not the value: under the new key stands what the lake has of the lost change."""
    pipeline = pair.pipeline
    pipeline.execute("ALTER TABLE public.item ALTER note SET STORAGE EXTERNAL")
    pipeline.execute("UPDATE public.item SET note = repeat('common ', 1000) WHERE id = 2")
    pipeline.drain()
    pair.catch_up()
    pair.standby.fall_behind()
    pipeline.execute("UPDATE public.item SET note = repeat('lost ', 1000) WHERE id = 2")
    pipeline.drain()
    pair.promote()
    pipeline.execute("UPDATE public.item SET id = 22 WHERE id = 2")
    with pytest.raises(SourceForked, match=r"public\.item \(1 row\)"):
        pipeline.drain()
    assert marked(pipeline) == {"public.item": [("2",)]}
    pipeline.drain()
    assert marked(pipeline) == {"public.item": backfill_marks.FORK}
    (backfill,) = pipeline.plan()
    assert backfill.whole_table


@pytest.mark.thorough
def test_a_source_that_was_restored_to_a_moment_names_what_it_lost(
    primary: PostgresServer, captured_there: Pipeline, tmp_path: Path
) -> None:
    """A base backup has no slots, so preflight makes one, and there is a gap behind it as well."""
    pipeline = captured_there
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    moment = {"recovery_target": "immediate", "recovery_target_action": "promote"}
    with standby_of(primary, tmp_path / "restored", database, slots=False, settings=moment) as restored:
        wait_for("the copy has its own timeline", restored.is_primary)
        pipeline.execute("UPDATE public.item SET note = 'lost' WHERE id = 2")
        pipeline.drain()
        pipeline.close()
        primary.stop("immediate")
        pipeline.source = restored.conninfo(database)
        (error,) = pipeline.preflight().errors
        assert "timeline 2 instead of 1" in str(error)
        assert "lost 1 transaction that the lake has" in str(error)
        assert set(marked(pipeline).values()) == {backfill_marks.GAP}
        pipeline.sound()
        pipeline.drain()


@pytest.mark.thorough
def test_a_promotion_that_lost_nothing_goes_on_with_a_slot_that_is_behind(pair: Pair) -> None:
    pipeline = pair.pipeline
    pipeline.execute("INSERT INTO public.item VALUES (6, 'staged, above where the standby has the slot')")
    pipeline.drain()
    staged = pipeline.staged_lsn()
    pair.catch_up()
    pair.promote()
    confirmed = pipeline.confirmed_lsn()
    assert confirmed is not None
    assert confirmed < staged
    pipeline.execute("INSERT INTO public.item VALUES (7, 'after the promotion')")
    pipeline.sound()
    pipeline.drain()
    pipeline.confirm()
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (1, 2)
    assert [row["id"] for row in pipeline.staged("public.item")] == [*range(1, 8)]
    assert marked(pipeline) == {}


@pytest.mark.thorough
def test_a_truncate_that_was_lost_asks_for_all_rows_of_its_table_alone(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("TRUNCATE public.line")
    pipeline.execute("DELETE FROM public.other")
    pipeline.execute("INSERT INTO public.log VALUES ('there is nothing but its history')")
    pipeline.drain()
    pair.promote()
    with pytest.raises(SourceForked, match=r"public\.line \(all rows\), public\.other \(1 row\)") as raised:
        pipeline.drain()
    assert "(public.log)" in str(raised.value)
    assert marked(pipeline) == {"public.line": backfill_marks.FORK, "public.other": [("1",)]}


def unmark(pipeline: Pipeline) -> None:
    pipeline.ledger_query(
        "UPDATE tidemark.tables SET needs_backfill = false, backfill_kind = NULL, backfill_reason = NULL,"
        " backfill_since = NULL, lost_keys = NULL, columns_in_doubt = NULL"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "at_once"])
@pytest.mark.parametrize("name", ["lost", "other"])
def test_a_columns_number_that_was_lost_and_given_out_again_is_another_columns(
    pair: Pair, name: str, *, is_seen: bool
) -> None:
    """A column came in the lost part, and current has its default in every row. `is_seen`: a change without it comes
    before the one that gets its number, under its name or another."""
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("ALTER TABLE public.item ADD COLUMN lost int DEFAULT 7")
    pipeline.execute("UPDATE public.item SET lost = 1 WHERE id = 2")
    pipeline.drain()
    pair.promote()
    with pytest.raises(SourceForked):
        pipeline.drain()
    if is_seen:
        pipeline.execute("INSERT INTO public.item VALUES (20)")
        pipeline.drain()
    # As a backfill of the touched rows leaves it, which does not read a column that is not there.
    unmark(pipeline)
    pipeline.execute(f"ALTER TABLE public.item ADD COLUMN {name} int", "INSERT INTO public.item VALUES (21, 'x', 5)")
    pipeline.drain()
    row = pipeline.table_row("public.item")
    assert f'column "{name}" has the number of one that the source lost' in str(row.backfill_reason)
    assert row.columns_in_doubt == [3]
    unmark(pipeline)
    pipeline.execute("INSERT INTO public.item VALUES (22, 'x', 5)")
    pipeline.drain()
    assert not pipeline.table_row("public.item").life.needs_backfill, "it is said once"


@pytest.mark.thorough
def test_a_table_whose_first_change_was_lost_has_the_columns_that_its_chunks_have(pair: Pair) -> None:
    pipeline = pair.pipeline
    pipeline.execute("CREATE TABLE public.quiet (id int PRIMARY KEY, note text)")
    pipeline.execute("INSERT INTO public.quiet SELECT i, 'common' FROM generate_series(1, 5) i")
    pipeline.sound()
    pipeline.plan(tables=("public.quiet",))
    pipeline.read()
    pipeline.drain()
    unmark(pipeline)
    pair.carry_over()
    pair.standby.fall_behind()
    pipeline.execute("UPDATE public.quiet SET note = 'lost' WHERE id = 2")
    pipeline.drain()
    pair.promote()
    with pytest.raises(SourceForked):
        pipeline.drain()
    pipeline.execute("UPDATE public.quiet SET note = 'after the promotion' WHERE id = 3")
    pipeline.drain()
    assert marked(pipeline) == {"public.quiet": [("2",)]}


@pytest.mark.thorough
def test_a_table_whose_every_change_was_lost_keeps_its_columns(pair: Pair) -> None:
    pipeline = pair.pipeline
    pipeline.execute("CREATE TABLE public.quiet (id int PRIMARY KEY, note text)")
    pipeline.sound()
    pair.carry_over()
    pair.standby.fall_behind()
    pipeline.execute("INSERT INTO public.quiet VALUES (2, 'lost')")
    pipeline.drain()
    pair.promote()
    with pytest.raises(SourceForked):
        pipeline.drain()
    pipeline.execute("INSERT INTO public.quiet VALUES (3, 'after the promotion')")
    pipeline.drain()
    assert marked(pipeline) == {"public.quiet": [("2",)]}
    (version,) = pipeline.ledger_query(
        "SELECT max(version) FROM tidemark.schema_versions WHERE \"table\" = 'public.quiet'"
    )
    assert version == (1,)


def test_a_promotion_that_lost_only_heartbeats_says_nothing(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.drain()
    pair.promote()
    pipeline.execute("INSERT INTO public.item VALUES (6, 'after the promotion')")
    pipeline.drain()
    generation = pipeline.generation()
    assert generation is not None
    assert generation.number == 2
    assert marked(pipeline) == {}


@pytest.mark.thorough
def test_a_table_that_joined_in_the_lost_part_is_read_again_as_a_whole(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("CREATE TABLE public.late (id int PRIMARY KEY)")
    pipeline.sound()
    pipeline.execute("INSERT INTO public.late VALUES (1)")
    pipeline.drain()
    pair.promote()
    with pytest.raises(SourceForked, match=r"public\.late"):
        pipeline.drain()
    assert marked(pipeline) == {"public.late": backfill_marks.FORK}


@pytest.mark.thorough
def test_a_standby_without_the_slot_is_a_gap_and_what_was_lost_is_named_all_the_same(
    primary: PostgresServer, captured_there: Pipeline, tmp_path: Path
) -> None:
    pipeline = captured_there
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    with standby_of(primary, tmp_path / "standby", database, slots=False) as standby:
        pair = Pair(primary, standby, pipeline, database)
        pair.catch_up()
        lose_some(pair)
        pair.promote()
        (error,) = pipeline.preflight().errors
        assert "lost 3 transactions that the lake has" in str(error)
        assert set(marked(pipeline).values()) == {backfill_marks.GAP}


@pytest.mark.thorough
def test_a_standby_without_the_slot_that_has_everything_is_a_gap_from_what_was_staged(
    primary: PostgresServer, captured_there: Pipeline, tmp_path: Path
) -> None:
    pipeline = captured_there
    database = str(conninfo_to_dict(pipeline.source)["dbname"])
    with standby_of(primary, tmp_path / "standby", database, slots=False) as standby:
        pair = Pair(primary, standby, pipeline, database)
        pair.catch_up()
        pair.promote()
        staged = pipeline.staged_lsn()
        (error,) = pipeline.preflight().errors
        assert 'and the slot "' in str(error)
        assert f"was not carried over: it begins at {pipeline.confirmed_lsn()}" in str(error)
        assert str(staged) in str(error)
        assert set(marked(pipeline).values()) == {backfill_marks.GAP}


@pytest.mark.thorough
@pytest.mark.walks("SourceLeftBehind")
def test_an_old_primary_that_still_runs_is_not_read_and_the_generation_waits_for_the_new_one(
    pair: Pair, told: Told
) -> None:
    pipeline = pair.pipeline
    old = pipeline.source
    pair.promote(stop=False)
    pipeline.execute("INSERT INTO public.item VALUES (6, 'after the promotion')")
    pipeline.drain()
    new, pipeline.source = pipeline.source, old
    pipeline.close()
    pipeline.execute("INSERT INTO public.item VALUES (66, 'of an application that was not told')")
    with told(SourceLeftBehind, "on timeline 1", "Let the connection lead to the server that is the primary now"):
        pipeline.drain()
    pipeline.close()
    pipeline.source = new
    pipeline.execute("INSERT INTO public.item VALUES (7, 'later')")
    pipeline.drain()
    assert [row["id"] for row in pipeline.staged("public.item")] == [*range(1, 8)]
    assert marked(pipeline) == {}


@pytest.mark.thorough
def test_a_person_may_say_that_the_server_left_behind_is_the_source(pair: Pair) -> None:
    pipeline = pair.pipeline
    old = pipeline.source
    pair.promote(stop=False)
    pipeline.drain()
    pipeline.close()
    pipeline.source = old
    report = pipeline.preflight(says=["adopt_slot"])
    assert any("timeline 1 instead of 2" in str(finding) for finding in report.findings)
    assert set(marked(pipeline).values()) == {backfill_marks.GAP}
    pipeline.drain()


@pytest.mark.thorough
def test_two_standbys_on_timelines_of_one_number_are_told_apart(pair: Pair, tmp_path: Path) -> None:
    pipeline = pair.pipeline
    with standby_of(pair.primary, tmp_path / "second", pair.database, name="second") as second:
        pair.carry_over(second)
        pair.standby.fall_behind()
        pipeline.execute("INSERT INTO public.item VALUES (6, 'known to the second alone')")
        pipeline.drain()
        wait_for("the second has all", lambda: second.replayed(str(pipeline.flush_lsn())))
        pair.promote()
        with suppress(SourceForked):
            pipeline.drain()
        pipeline.drain()
        second.promote()
        pipeline.close()
        pipeline.source = second.conninfo(pair.database)
        with pytest.raises(SourceReplaced, match="another timeline 2 than the one that was followed; they part at"):
            pipeline.drain()


@pytest.mark.thorough
def test_a_connection_that_names_both_servers_follows_the_promotion(pair: Pair) -> None:
    pipeline = pair.pipeline
    one, other = conninfo_to_dict(pipeline.source), conninfo_to_dict(pair.standby.conninfo(pair.database))
    both = psycopg.conninfo.make_conninfo(
        **{
            **one,
            "host": f"{other['host']},{one['host']}",
            "port": f"{other['port']},{one['port']}",
            "target_session_attrs": "read-write",
        }
    )
    pipeline.close()
    pipeline.source = both
    pipeline.execute("INSERT INTO public.item VALUES (6, 'before')")
    pipeline.sound()
    pipeline.drain()
    pair.catch_up()
    pair.promote()
    pipeline.source = both
    pipeline.execute("INSERT INTO public.item VALUES (7, 'after')")
    pipeline.sound()
    pipeline.drain()
    pipeline.plan(tables=("public.other",))
    pipeline.read()
    pipeline.drain()
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (1, 2)
    assert [row["id"] for row in pipeline.staged("public.item")] == [*range(1, 8)]


# --- backfills and verifies under way ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_primary_that_dies_while_a_snapshot_is_exported_is_read_again_on_the_new_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("UPDATE public.item SET note = 'lost' WHERE id = 2", "INSERT INTO public.item VALUES (9, 'lost')")
    pipeline.plan(run_id="exported", tables=("public.item",), mode="exported_snapshot", chunk_rows=2)
    read = exported_snapshot.read_chunks

    def dies(run: Run, *, imported: ImportedSnapshot) -> ReadResult:
        pair.promote()
        return read(run, imported=imported)

    with monkeypatch.context() as dying:
        dying.setattr(exported_snapshot, "read_chunks", dies)
        with pytest.raises((DatabaseUnreachable, DatabaseRefused)):
            pipeline.read_exported()
    pipeline.drain()
    (backfill,) = pipeline.plan(run_id="exported", tables=("public.item",), mode="exported_snapshot", chunk_rows=2)
    pipeline.read_exported()
    assert [(row["id"], row["note"]) for row in pipeline.rows(backfill)] == [(n, "common") for n in range(1, 6)]
    assert marked(pipeline) == {}
    generation = pipeline.generation()
    assert generation is not None
    assert (generation.number, generation.timeline) == (1, 2)


@pytest.mark.thorough
def test_what_a_verify_read_of_a_lost_primary_is_read_again(pair: Pair) -> None:
    pipeline = pair.pipeline
    pair.standby.fall_behind()
    pipeline.execute("UPDATE public.item SET note = 'lost' WHERE id = 2", "INSERT INTO public.item VALUES (9, 'lost')")
    pipeline.run_id = "verify"
    request = VerifyRequest(tables=("public.item",), share=Fraction(1))
    plan_verify(pipeline.task("plan", "verify"), request=request)
    pipeline.read()
    with pipeline.ledger_connection() as book:
        (verify,) = backfills.of_run(book, "verify")
    assert {row["note"] for row in pipeline.rows(verify)} == {"common", "lost"}
    pair.promote()
    pipeline.drain()
    pipeline.read()
    pipeline.drain()
    claims = [c for batch in pipeline.registered() for t in pipeline.manifest(batch).tables for c in t.claims]
    claimed = [row for claim in claims for file in claim.files for row in read_table(pipeline.store, file).to_pylist()]
    assert [(row["id"], row["note"]) for row in claimed] == [(n, "common") for n in range(1, 6)]


@pytest.mark.thorough
def test_a_switch_over_and_back_keeps_the_generation(pair: Pair, tmp_path: Path) -> None:
    """The old primary, begun anew as the standby of the new one, takes over in turn."""
    pipeline = pair.pipeline
    pipeline.execute("INSERT INTO public.item VALUES (6, 'before')")
    pipeline.drain()
    pair.catch_up()
    pair.promote()
    pipeline.execute("INSERT INTO public.item VALUES (7, 'on the other one')")
    pipeline.drain()
    with standby_of(pair.standby, tmp_path / "back", pair.database, name="back") as back:
        there = Pair(pair.standby, back, pipeline, pair.database)
        there.carry_over()
        pipeline.execute("INSERT INTO public.item VALUES (8, 'staged on the other one alone')")
        pipeline.drain()
        there.catch_up()
        there.promote()
        pipeline.execute("INSERT INTO public.item VALUES (9, 'back')")
        pipeline.sound()
        pipeline.drain()
        generation = pipeline.generation()
        assert generation is not None
        assert (generation.number, generation.timeline) == (1, 3)
        assert [row["id"] for row in pipeline.staged("public.item")] == [*range(1, 10)]
        assert marked(pipeline) == {}
