"""Captures tables run by run, with whatever merges them, and judges each: equal to its source, marked, or at fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.definitions.list_of_rows import Lake, text_of
from tests.support import judge
from tests.support.pipeline import Pipeline
from tidemark.backfill.backfill_requests import requested_tables
from tidemark.ledger.captured import successors
from tidemark.ledger.captured.tables import TableRow
from tidemark.source import event_trigger

MOST_BACKFILLS = 3
NEVER = ("parked", "differs", "failed", "not captured")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is "equal", "marked", "parked", "differs" (and says nothing), "not captured", "history" (which has nothing
    to compare), "failed" (as a whole)."""

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


EQUAL = Verdict("equal")


@dataclass(frozen=True, slots=True)
class Known:
    """What tables are judged by: `called` is by the relation's OID the id of its table, `rows` the ledger's of each,
    `unplaced` what readers do not see yet, `at_source` by name a relation's OID and columns, `errors` those of the last
    run."""

    called: dict[int, str]
    rows: dict[str, TableRow]
    unplaced: set[str]
    at_source: dict[str, tuple[int, list[tuple[int, str]]]]
    errors: dict[str, str]


class Capture:
    """A pipeline, and the tables that its merges make of rows: lists, if nothing else is said."""

    def __init__(self, pipeline: Pipeline, lake: Lake | None = None) -> None:
        self.pipeline = pipeline
        self.lake = Lake(pipeline) if lake is None else lake

    def begin(self, *, all_tables: bool, has_trigger: bool) -> None:
        """Publication, slot and first preflight, and the event trigger."""
        pipeline = self.pipeline
        if all_tables:
            carried = ", publish_generated_columns = stored" * (pipeline.connection.info.server_version >= 180000)
            pipeline.execute(
                f"CREATE PUBLICATION {pipeline.config.publication} FOR ALL TABLES "
                f"WITH (publish_via_partition_root{carried})"
            )
            pipeline.create_slot()
        pipeline.sound()
        if has_trigger:
            role = pipeline.one("SELECT current_user")
            pipeline.execute(event_trigger.create_sql(pipeline.config, role))

    def run(self) -> dict[str, str]:
        """One run of the capture; by table, the errors of preflight and merge, and why a pattern leaves it out."""
        report = self.pipeline.preflight()
        report.raise_for_errors()
        left_out = [f.message for f in report.findings if f.severity == "warning" and "not captured" in f.message]
        errors = {message.split()[0].rstrip(":"): message for message in left_out}
        errors |= {str(table): str(finding.message) for finding in report.table_errors for table in finding.tables}
        self.pipeline.drain()
        errors |= self.lake.merge()
        return errors

    def backfills(self) -> bool:
        """All that are wanted; whether there was one."""
        for number in range(MOST_BACKFILLS):
            if not requested_tables(self.pipeline.task()):
                return number > 0
            self._backfill()
        return True

    def _backfill(self) -> None:
        self.pipeline.plan()
        self.pipeline.read()
        self.pipeline.drain()
        self.lake.merge()

    def run_and_judge(self, here: str) -> Verdict:
        """One run, and the verdict on the table that is called so behind it."""
        return self.verdict(here, self.known(self.run()))

    # --- judging ------------------------------------------------------------------------------------------------------

    def known(self, errors: dict[str, str]) -> Known:
        return Known(self.called(), self.pipeline.table_rows(), self.unplaced(), self._at_source(), errors)

    def unplaced(self) -> set[str]:
        with self.pipeline.ledger_connection() as ledger:
            return successors.unplaced(ledger)

    def _at_source(self) -> dict[str, tuple[int, list[tuple[int, str]]]]:
        """By name, the relation and those of its columns that the publication carries."""
        rows = self.pipeline.query(
            "SELECT n.nspname || '.' || c.relname, c.oid::bigint, array_agg(a.attnum::int ORDER BY a.attnum), "
            "array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            f"AND a.attgenerated NOT IN ('v'{self._not_carried()}) "
            "WHERE n.nspname LIKE 's%' AND c.relkind IN ('r', 'p') GROUP BY 1, 2"
        )
        return {name: (oid, list(zip(numbers, names, strict=True))) for name, oid, numbers, names in rows}

    def verdict(self, here: str, known: Known, *, has_current: bool = True, only: str = "") -> Verdict:
        """Of the table that is called so now. `only` is it for a query of its own rows."""
        oid, columns = known.at_source[here]
        table = known.called.get(oid)
        barred = next((why for name, why in known.errors.items() if name in (here, table)), "")
        row = None if table is None else known.rows.get(table)
        if row is None or table is None:
            return Verdict("marked", barred) if barred else Verdict("not captured", here)
        if row.life.is_parked:
            return Verdict("parked", str(judge.marked(row)))
        if row.life.needs_backfill or table in known.unplaced:
            return Verdict("marked", str(judge.marked(row)))
        if barred or not row.life.is_captured:
            return Verdict("marked", barred or f"it is {row.life.capture}")
        if not has_current:
            return Verdict("history")
        return self._compare(only or here, table, columns)

    def _compare(self, only: str, table: str, columns: list[tuple[int, str]]) -> Verdict:
        target = self.lake.target(table)
        at_source = Counter(
            tuple(text_of(value) for value in row)
            for row in self.pipeline.query(f"SELECT {', '.join(name for _, name in columns)} FROM {only}")
        )
        if target is None:
            return (
                Verdict("differs", f"{sum(at_source.values())} rows, and no current") if at_source else Verdict("equal")
            )
        names = [target.field_of(number, name) for number, name in columns]
        if None in names:
            if not target.fields and not at_source:
                return Verdict("equal")
            lacking = [name for (_, name), found in zip(columns, names, strict=True) if found is None]
            return Verdict("differs", f"current has no column {', '.join(lacking)}")
        in_lake = target.values(name for name in names if name is not None)
        if in_lake == at_source:
            return Verdict("equal")
        shown = [f"only at the source {_short(row)}" for row in at_source - in_lake]
        shown += [f"only in current {_short(row)}" for row in in_lake - at_source]
        return Verdict("differs", f"in {[name for _, name in columns]}: {'; '.join(shown[:3])}")

    def _not_carried(self) -> str:
        carries = self.pipeline.connection.info.server_version >= 180000 and self.pipeline.query(
            f"SELECT FROM pg_publication WHERE pubname = '{self.pipeline.config.publication}' AND pubgencols = 's'"
        )
        return "" if carries else ", 's'"

    def called(self) -> dict[int, str]:
        """By the relation's OID, the id of its table."""
        rows = self.pipeline.ledger_query(
            'SELECT DISTINCT ON (relation_oid) relation_oid, "table" FROM tidemark.relations WHERE pipeline = %s '
            "AND gone_lsn IS NULL ORDER BY relation_oid, noted_at DESC",
            self.pipeline.config.pipeline,
        )
        return {int(oid): table for oid, table in rows}


def _short(row: tuple[str | None, ...]) -> str:
    return str(tuple(v if v is None or len(v) < 20 else f"{v[:6]}…{len(v)}" for v in row))
