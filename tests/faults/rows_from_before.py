"""Tables with rows that are older than their capture, and changes of them: what the fault tests of backfills read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support import judge
from tests.support.capture import Environment
from tidemark.ledger.captured.backfill_marks import HOLES
from tidemark.ledger.reading import backfills, chunks
from tidemark.ledger.reading.backfills import Backfill
from tidemark.ledger.reading.chunks import ReadChunk

_numbers: Iterator[int] = itertools.count(1)

ROWS = 20


@dataclass(slots=True)
class Old:
    """A table with a key and one without, of the shop; both have `ROWS` rows of which the stream says nothing."""

    shop: Environment
    item: str
    bag: str

    @property
    def tables(self) -> tuple[str, str]:
        return self.item, self.bag

    def change(self) -> None:
        """Changes of every kind, on rows at both ends of the key's order and in between."""
        n = next(_numbers)
        for statement in (
            f"INSERT INTO {self.item} VALUES ({100 + n}, 'new', repeat('n', 4000))",
            f"UPDATE {self.item} SET name = 'changed {n}' WHERE id % 4 = {n % 4}",
            f"UPDATE {self.item} SET id = -id, name = 'moved' WHERE id = {ROWS - n % 5}",
            f"DELETE FROM {self.item} WHERE id = {1 + n % ROWS}",
            f"INSERT INTO {self.bag} VALUES ('twice', {n}), ('twice', {n})",
            f"DELETE FROM {self.bag} WHERE ctid = (SELECT min(ctid) FROM {self.bag})",
        ):
            self.shop.execute(statement)

    def backfills(self) -> list[Backfill]:
        """Those of the run whose tasks are called now."""
        with self.shop.ledger_connection() as connection:
            return backfills.of_run(connection, self.shop.report.run_id)

    def chunks(self) -> list[ReadChunk]:
        """What was recorded for the backfills of that run."""
        with self.shop.ledger_connection() as connection:
            return [c for b in self.backfills() for c in chunks.of_backfill(connection, b.backfill)]

    def are_in_sync(self) -> None:
        """Both are equal to the source, no part was read twice, and a capture run has nothing to do. A key that moved
        behind the reader has left a hole, which the next backfill fills."""
        read = Counter((c.backfill, c.range, c.lower) for c in self.chunks() if c.rejected is None)
        twice = [chunk for chunk, times in read.items() if times > 1]
        assert twice == [], f"finished chunks were read again: {twice}"
        run_id = self.shop.report.run_id
        self.shop.let_leases_end()
        self.shop.run()
        rows = judge.captured(self.shop)
        if any(rows[table].life.needs_backfill for table in self.tables):
            assert {rows[table].backfill_kind for table in self.tables} <= {None, HOLES}, rows
            self.shop.backfill()
        wrongs = judge.wrongs(self.shop, self.tables)
        assert wrongs == [], wrongs
        changed = judge.second_run_changes_nothing(self.shop)
        assert changed == [], changed
        assert self.shop.confirmed_lsn() == self.shop.staged_lsn()
        self.shop.begin_run(run_id)


def old_tables(shop: Environment) -> Old:
    """Make them, and let the capture see them join."""
    n = next(_numbers)
    old = Old(shop, f"shop.old_item_{n}", f"shop.old_bag_{n}")
    for statement in (
        f"CREATE TABLE {old.item} (id int PRIMARY KEY, name text, body text STORAGE EXTERNAL)",
        f"INSERT INTO {old.item} SELECT i, 'old', repeat('o', 4000) FROM generate_series(1, {ROWS}) i",
        f"CREATE TABLE {old.bag} (what text, n int)",
        f"ALTER TABLE {old.bag} REPLICA IDENTITY FULL",
        f"INSERT INTO {old.bag} SELECT 'old', i % 3 FROM generate_series(1, {ROWS}) i",
    ):
        shop.execute(statement)
    shop.begin_run()
    shop.preflight()
    return old
