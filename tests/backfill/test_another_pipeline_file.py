"""Workers whose pipeline files differ: whoever has another file than the last preflight waits, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.pipeline import Pipeline, pipeline_config
from tidemark.config import TableRule
from tidemark.errors import PipelineFileDiffers, PipelineFileSuperseded
from tidemark.ledger import leases, pipeline_files
from tidemark.ledger.connection import open_ledger

SETTLE_S = 600


@contextmanager
def another_worker(captured: Pipeline, *rules: TableRule) -> Iterator[None]:
    """What follows is done where the file says this of tables."""
    there = captured.config
    captured.config = replace(there, tables=rules)
    yield
    captured.config = there


@pytest.fixture
def two_tables(captured: Pipeline) -> Pipeline:
    """A pipeline that captures public.a and has not heard of public.b."""
    captured.execute("CREATE TABLE a (id int PRIMARY KEY, note text)", "CREATE TABLE b (id int PRIMARY KEY, note text)")
    bounds = captured.config.bounds.model_copy(update={"file_settle_s": SETTLE_S})
    captured.config = replace(captured.config, tables=(TableRule("public.a"),), bounds=bounds)
    captured.capture()
    captured.drain()
    return captured


BOTH = (TableRule("public.a"), TableRule("public.b"))


def test_a_drain_with_an_older_file_waits_and_loses_nothing_of_a_table_that_joined(two_tables: Pipeline) -> None:
    with another_worker(two_tables, *BOTH):
        two_tables.capture()
    two_tables.execute("INSERT INTO b VALUES (1, 'one')")
    before = len(two_tables.registered())
    with pytest.raises(PipelineFileDiffers):
        two_tables.drain()
    assert len(two_tables.registered()) == before
    with another_worker(two_tables, *BOTH):
        two_tables.drain()
        assert [row["id"] for row in two_tables.staged("public.b")] == [1]


def test_a_drain_with_a_newer_file_waits_for_its_preflight(two_tables: Pipeline) -> None:
    """It might know of a mask that nobody looked for yet."""
    with another_worker(two_tables, TableRule("public.a", mask={"note": "null"})):
        with pytest.raises(PipelineFileDiffers):
            two_tables.drain()
        two_tables.capture()
        two_tables.drain()


def test_a_new_mask_is_passed_by_neither_in_the_stream_nor_in_a_chunk(two_tables: Pipeline) -> None:
    two_tables.execute("INSERT INTO a VALUES (1, 'a secret')")
    (before,) = two_tables.plan(tables=["public.a"])
    with another_worker(two_tables, TableRule("public.a", mask={"note": "null"})):
        two_tables.capture()
    with pytest.raises(PipelineFileDiffers):
        two_tables.drain()
    two_tables.read()
    assert two_tables.chunks(before) == []
    with another_worker(two_tables, TableRule("public.a", mask={"note": "null"})):
        two_tables.drain()
        assert two_tables.again(before).state == "closed"
        (backfill,) = two_tables.plan(tables=["public.a"])
        two_tables.read()
        assert [row["note"] for row in two_tables.rows(backfill)] == [None]
    with pytest.raises(PipelineFileDiffers):
        two_tables.plan(tables=["public.a"])


def test_a_chunk_read_in_clear_is_not_claimed_behind_a_new_mask(two_tables: Pipeline) -> None:
    """The reader saw a change that is staged with its mask, later: the chunk's row would stand above it."""
    (backfill,) = two_tables.plan(tables=["public.a"])
    two_tables.execute("INSERT INTO a VALUES (1, 'a secret')")
    two_tables.read()
    assert [row["note"] for row in two_tables.rows(backfill)] == ["a secret"]
    with another_worker(two_tables, TableRule("public.a", mask={"note": "null"})):
        two_tables.capture()
        two_tables.drain()
        assert [row["note"] for row in two_tables.staged("public.a")] == [None]
    assert not [claim for m in two_tables.manifests() for t in m.tables for claim in t.claims]


def test_a_table_that_is_added_closes_no_backfill(two_tables: Pipeline) -> None:
    (backfill,) = two_tables.plan(tables=["public.a"])
    with another_worker(two_tables, *BOTH):
        two_tables.capture()
    with pytest.raises(PipelineFileDiffers):
        two_tables.read()
    assert two_tables.chunks(backfill) == []
    with another_worker(two_tables, *BOTH):
        two_tables.read()
    assert [chunk.rows for chunk in two_tables.chunks(backfill)] == [0]
    assert two_tables.again(backfill).state == "open"


def test_whoever_waits_for_a_note_sees_what_was_noted(two_tables: Pipeline) -> None:
    """A reader records its chunk just as another file is noted: it waits, and then finds that its own holds no more."""
    config = two_tables.config
    other = replace(config, tables=(TableRule("public.a", mask={"note": "null"}),))
    raised: list[type[BaseException]] = []

    def compare() -> None:
        with open_ledger(two_tables.ledger, two_tables.config.pipeline) as ledger:
            try:
                pipeline_files.require(ledger, config.digest)
            except PipelineFileDiffers as differs:
                raised.append(type(differs))

    with (
        leases.hold(two_tables.ledger, config.pipeline, leases.SLOT, "preflight/1") as lease,
        open_ledger(two_tables.ledger, two_tables.config.pipeline) as ledger,
    ):
        with ledger.transaction():
            pipeline_files.note(ledger, lease, other)
            reader = threading.Thread(target=compare)
            reader.start()
            with open_ledger(two_tables.ledger, two_tables.config.pipeline) as watching:
                waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while watching.execute(waits.encode()).fetchone() == (0,):
                    reader.join(0.01)
        reader.join(30)
    assert raised == [PipelineFileDiffers]


def test_a_preflight_with_the_file_of_before_changes_nothing_until_it_is_meant(two_tables: Pipeline) -> None:
    with another_worker(two_tables, *BOTH):
        two_tables.capture()
    report = two_tables.preflight()
    assert "as it was before" in str(report)
    with pytest.raises(PipelineFileSuperseded):
        report.raise_for_errors()
    published = "SELECT array_agg(tablename::text ORDER BY 1) FROM pg_publication_tables"
    assert two_tables.one(published) == ["a", "b"]
    with open_ledger(two_tables.ledger, two_tables.config.pipeline) as ledger:
        ledger.execute(
            "UPDATE tidemark.pipeline_files SET superseded_at = superseded_at - make_interval(secs => %s)", (SETTLE_S,)
        )
    two_tables.capture()
    assert two_tables.one(published) == ["a"]
    two_tables.drain()


def test_a_file_that_another_one_followed_while_the_clock_was_ahead_may_come_back(two_tables: Pipeline) -> None:
    with another_worker(two_tables, *BOTH):
        two_tables.capture()
    with open_ledger(two_tables.ledger, two_tables.config.pipeline) as ledger:
        ledger.execute("UPDATE tidemark.pipeline_files SET superseded_at = superseded_at + interval '1 year'")
    two_tables.capture()
    two_tables.drain()


def test_a_look_at_another_file_takes_no_notice_of_it(two_tables: Pipeline) -> None:
    with another_worker(two_tables, *BOTH):
        two_tables.preflight(act=False)
    two_tables.drain()


def test_a_ledger_without_a_digest_lets_pass(two_tables: Pipeline) -> None:
    """As behind an upgrade, until the next preflight."""
    with open_ledger(two_tables.ledger, two_tables.config.pipeline) as ledger:
        ledger.execute("DELETE FROM tidemark.pipeline_files")
    two_tables.drain()
    two_tables.capture()
    with another_worker(two_tables, *BOTH), pytest.raises(PipelineFileDiffers):
        two_tables.drain()


def file(*rules: TableRule, **options: object) -> str:
    return pipeline_config("shop", "lake", rules, **options).digest


def test_what_captures_the_same_has_one_digest_however_it_is_written() -> None:
    digest = file(TableRule("s.a", leave_out=("x", "y"), mask={"m": "null", "n": "sha256"}), TableRule("s.b_*"))
    again = TableRule("s.a", leave_out=("y", "x"), mask={"n": "sha256", "m": "null"}, line=9)
    assert file(TableRule('"s".b_*', line=3), again) == digest
    assert file(again, TableRule("s.b_*"), bounds={"batch_rows": 7}) == digest


@pytest.mark.parametrize(
    "other",
    [
        (TableRule("s.a"), TableRule("s.b")),
        (TableRule("s.a", leave_out=("x",)),),
        (TableRule("s.a", mask={"x": "null"}),),
        (TableRule("s.a", mask={"x": "sha256"}),),
        (TableRule("s.a", target={"x": "text"}),),
        (TableRule("s.a", clear=("x",)),),
        (TableRule("s.*"),),
        (TableRule('"s"."*"'),),
    ],
)
def test_what_captures_otherwise_has_another_digest(other: tuple[TableRule, ...]) -> None:
    everything = [file(TableRule("s.a")), file(*other), file(TableRule("s.a"), slot="other")]
    assert len(set(everything)) == 3
