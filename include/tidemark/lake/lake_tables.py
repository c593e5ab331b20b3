"""Opens the tables of a pipeline's folder: as they are, as they were at any moment, and several as of one (R1, R2).

`current` is read if one of its versions has the state of that moment, `history` otherwise. So nothing depends on how
many versions Delta keeps. A table is complete up to the position of the last batch that touched it, which its Delta
tables have. It may be complete further without being touched: the merge records that in `_positions`
(`formats.layout.positions_table`). `_positions` is read first and the tables after it: a row held when it was written,
so it holds for a table that is opened later.

`exact_from` is the moment from which the table as a whole equals the source. A backfill's `read` and `sweep` rows are
no changes of the source. They are the rows at their watermark that the changes before had not brought. So a table is
exact from the last of them, or from when the ledger last ended its need of a backfill, whichever is later. It is None
while the table needs one, and if `_positions` has no row of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidemark.errors import MomentBeforeHistory, MomentNotApplied, TableNotInLake
from tidemark.formats import layout
from tidemark.lake import as_of_query, delta_schemas
from tidemark.lake import moments as positions
from tidemark.lake.as_of_query import Truncated
from tidemark.lake.delta_schemas import TableShape
from tidemark.lake.engine import Engine, OpenedTable
from tidemark.lake.moments import Moment, Position
from tidemark.lsn import Lsn
from tidemark.names import TableName, spark_identifier
from tidemark.wording import moment as in_words

if TYPE_CHECKING:
    from tidemark.lake.spark_engine import SparkEngine

# Columns of `TableInLake.validity`: from when, to when, and whether the state is valid still.
VALIDITY: Final = ("valid_from", "valid_to", "is_current")
# The column of `TableInLake.with_deleted`.
DELETED_AT: Final = "_deleted_at"
# A generation without a commit on the table leaves no transaction in it; so many are passed over.
_GENERATIONS_AHEAD: Final = 3


class Lake:
    """The folder of one pipeline, `<lake root>/<pipeline>`: a path, or a URI that the engine supports.

    With a SparkSession rows are DataFrames. Without one, delta-rs reads the tables and rows are Arrow tables.
    `storage_options` are those of delta-rs. Raises DeltaRsMissing.
    """

    def __init__(self, folder: str, *, spark: Any = None, storage_options: Mapping[str, str] | None = None) -> None:
        root, _, name = str(folder).rstrip("/").rpartition("/")
        self.root = root
        self.pipeline = name
        self.engine = _engine(spark, storage_options)

    def table(self, name: str) -> TableInLake:
        """The table that the source calls `name`: "shop.orders"; a name that contains a dot is quoted.

        If several tables had the name, it is the one that had it at the last merge. "shop.orders~1" and "shop.orders~2"
        are the first and the second of them, whatever their present names are.
        """
        return TableInLake(self, name)

    def place(self, name: str) -> TableName:
        """The table's id, which names the folders of its Delta tables."""
        return self._places([name])[name]

    def as_of(self, moment: Moment, *names: str) -> TablesAtPosition:
        """Tables as of one moment. A time is converted to a position once, for all of them. Raises TableNotInLake,
        MomentInvalid, MomentNotApplied, MomentBeforeHistory."""
        readings = self._read_tables(names)
        return TablesAtPosition(_pasts(readings, _position([*readings.values()], moment)))

    def together(self, *names: str) -> TablesAtPosition:
        """Tables as of the newest position that all of them have reached. Raises TableNotInLake."""
        readings = self._read_tables(names)
        return TablesAtPosition(_pasts(readings, min(reading.applied for reading in readings.values())))

    def register(self, schema: str, *names: str) -> list[str]:
        """Register the Delta tables in the catalogue of the SparkSession, where they lie: `<schema>.<table>`,
        `<schema>.<table>__history`, `<schema>.tidemark_positions`. Returns the registered names; a name that is
        taken is skipped. Raises TableNotInLake, and ValueError if two tables would get one name."""
        spark = _spark(self.engine)
        _refuse_one_name_for_two(schema, names)
        places = {"tidemark_positions": f"{self.root}/{layout.positions_table(self.pipeline)}"}
        ids = self._places(names)
        for name in names:
            called, table = TableName.parse(name).name, ids[name]
            places |= {called: self.path("current", table), f"{called}__history": self.path("history", table)}
        there = {name: path for name, path in places.items() if self.engine.open(path) is not None}
        lacking = [name for name in names if f"{TableName.parse(name).name}__history" not in there]
        if lacking:
            table = ids[lacking[0]]
            raise TableNotInLake(table=table, path=self.path("history", table))
        return [spark.register(schema, name, path) for name, path in there.items()]

    def path(self, kind: str, table: TableName) -> str:
        place = layout.history_table if kind == "history" else layout.current_table
        return f"{self.root}/{place(self.pipeline, table)}"

    def _read_tables(self, names: Iterable[str]) -> dict[str, TableReading]:
        noted = self._noted()
        return {name: TableReading(self, table, noted) for name, table in self._places(names, noted).items()}

    def _noted(self) -> OpenedTable | None:
        return self.engine.open(f"{self.root}/{layout.positions_table(self.pipeline)}")

    def _places(self, names: Iterable[str], noted: OpenedTable | None = None) -> dict[str, TableName]:
        ids = {name: TableName.parse(name) for name in names}
        asked = {str(table): name for name, table in ids.items() if not _has_place(name)}
        noted = noted or self._noted()
        if not asked or noted is None:
            return ids
        positions, listed = _made_up(), ", ".join(map(self.engine.dialect.text, asked))
        last: dict[str, Position] = {}
        for row in self.engine.listed(
            f"SELECT source_name, table_name, generation, max(lsn) AS lsn FROM {positions} "
            f"WHERE source_name IN ({listed}) GROUP BY source_name, table_name, generation",
            {positions: noted},
        ):
            position, name = Position(row["generation"], Lsn(row["lsn"])), row["source_name"]
            if name not in last or last[name] < position:
                last[name], ids[asked[name]] = position, TableName.parse(row["table_name"])
        return ids


def _engine(spark: Any, storage_options: Mapping[str, str] | None) -> Engine:
    if spark is None:
        from tidemark.lake.delta_rs import DeltaRsEngine

        return DeltaRsEngine(storage_options)
    from tidemark.lake.spark_engine import SparkEngine

    return SparkEngine(spark)


def _refuse_one_name_for_two(schema: str, names: Iterable[str]) -> None:
    """Raises ValueError for names that differ in case alone, since catalogues ignore case."""
    first: dict[str, str] = {}
    for name in names:
        called = TableName.parse(name).name
        other = first.setdefault(called.lower(), name)
        if other != name:
            raise ValueError(
                f"{other} and {name} would both be {schema}.{called}: name them in two schemas, by two calls"
            )


def _spark(engine: Engine) -> SparkEngine:
    """The engine, if it is Spark: only Spark has a catalogue."""
    from tidemark.lake.spark_engine import SparkEngine

    if not isinstance(engine, SparkEngine):
        raise TypeError("a catalogue is Spark's: give Lake a SparkSession")
    return engine


def _newest(reading: TableReading) -> str:
    """The newest version of history, for a statement of Spark that may run later."""
    return f"delta.{spark_identifier(reading.history.path)}"


def _create_view(reading: TableReading, view: str, statement: str) -> str:
    schema, _, name = view.rpartition(".")
    return _spark(reading.engine).create_view(schema, name, statement)


@dataclass(frozen=True, slots=True)
class TableInLake:
    """One table of the lake; each call opens it again."""

    lake: Lake
    name: str

    def rows(self) -> Any:
        """The rows of `current`. Raises TableNotInLake."""
        return self.lake.engine.rows(self._opened("current"))

    def history(self) -> Any:
        """Every change, in no particular order. Raises TableNotInLake."""
        return self.lake.engine.rows(self._opened("history"))

    def validity(self, names: tuple[str, str, str] = VALIDITY) -> Any:
        """Every state in which a transaction left a row, with its validity range and whether it is valid now, in
        columns with the given names. Only for tables with a key.

        `as_of_query.validity` describes the other columns. Raises TableNotInLake, and ValueError for a table without a
        key or for a name that a column has.
        """
        reading, history = self._keyed(names), _made_up()
        statement = as_of_query.validity(reading.engine.dialect, reading.shape, history, names)
        return reading.engine.frame(statement, {history: reading.history})

    def create_validity_view(self, view: str, names: tuple[str, str, str] = VALIDITY) -> str:
        """Create the view `<schema>.<name>` in the SparkSession's catalogue, which always shows the `validity` of
        the newest version. Create it again after a column was added or dropped. Returns its name."""
        reading = self._keyed(names)
        statement = as_of_query.validity(reading.engine.dialect, reading.shape, _newest(reading), names)
        return _create_view(reading, view, statement)

    def with_deleted(self, deleted_at: str = DELETED_AT) -> Any:
        """The rows of the table and its deleted rows, with the time of the delete in the column of the given name;
        NULL for rows that exist. Each key has one row: its last state. Only for tables with a key.

        Raises TableNotInLake, and ValueError for a table without a key or for a name that a column has.
        """
        reading, history = self._keyed([deleted_at]), _made_up()
        statement = as_of_query.with_deleted(reading.engine.dialect, reading.shape, history, deleted_at)
        return reading.engine.frame(statement, {history: reading.history})

    def create_view_with_deleted(self, view: str, deleted_at: str = DELETED_AT) -> str:
        """As `create_validity_view`, for `with_deleted`."""
        reading = self._keyed([deleted_at])
        statement = as_of_query.with_deleted(reading.engine.dialect, reading.shape, _newest(reading), deleted_at)
        return _create_view(reading, view, statement)

    def _keyed(self, names: Sequence[str]) -> TableReading:
        (reading,) = self.lake._read_tables([self.name]).values()
        if not reading.shape.key:
            raise ValueError(f"{self.name} has no key: nothing says which of its rows a change was of")
        if taken := {name.lower() for name in names} & {column.name.lower() for column in reading.shape.columns}:
            raise ValueError(f"{self.name} has a column {', '.join(sorted(taken))}: give other names")
        return reading

    def _opened(self, kind: str) -> OpenedTable:
        path = self.lake.path(kind, self.lake.place(self.name))
        opened = self.lake.engine.open(path)
        if opened is None:
            raise TableNotInLake(table=self.name, path=path)
        return opened

    def as_of(self, moment: Moment) -> TableAtPosition:
        """See `Lake.as_of`."""
        return self.lake.as_of(moment, self.name)[self.name]

    def newest(self) -> TableAtPosition:
        """The table as of the position that it has reached."""
        return self.lake.together(self.name)[self.name]


class TableReading:
    """One opened table: its Delta tables and its row of `_positions`."""

    def __init__(self, lake: Lake, table: TableName, noted: OpenedTable | None) -> None:
        self.lake = lake
        self.engine = lake.engine
        self.table = table
        self.noted = noted
        self.current = self.engine.open(lake.path("current", table))
        history = self.engine.open(lake.path("history", table))
        if history is None:
            raise TableNotInLake(table=table, path=lake.path("history", table))
        self.history = history
        self.shape: TableShape = delta_schemas.shape_of(
            history.columns, None if self.current is None else self.current.columns
        )
        if self._lost_commits():
            self.noted = None
        self.noted_at = _one(self._of_positions("", newest=True))
        of_history = self._transaction("history", history, self.newest_generation)
        self.applied = max((at for at in (of_history, self.noted_at) if at is not None), default=Position(0, Lsn(0)))

    @cached_property
    def extents(self) -> list[dict[str, Any]]:
        """The first and the last commit of each generation; reads three columns of the whole history."""
        return self.listed(as_of_query.extents)

    @cached_property
    def newest_generation(self) -> int:
        """The newest generation that was merged. The transactions of history always name it, `_positions` may lack it.
        Without a row of `_positions` there is no generation to begin the search at, so history's rows are read."""
        if self.noted_at is None:
            return max([1, *(int(row["generation"]) for row in self.extents)])
        merged = self._transaction("history", self.history, self.noted_at.generation)
        return max(at.generation for at in (merged, self.noted_at) if at is not None)

    def _transaction(self, step: str, opened: OpenedTable, known: int) -> Position | None:
        """The position of the table's newest generation, from the transactions of its commits (R5), if that is not far
        beyond the generation `known`."""
        for generation in range(known + _GENERATIONS_AHEAD, 0, -1):
            application = f"tidemark:{self.lake.pipeline}:{generation}:{self.table}:{step}"
            version = self.engine.transaction(opened, application)
            if version is not None:
                return Position(generation, Lsn(version))
        return None

    def listed(self, statement: Any, *facts: Any) -> list[dict[str, Any]]:
        """The rows of a statement over the table's history, built by a function of `as_of_query`."""
        name = _made_up()
        return self.engine.listed(statement(name, *facts), {name: self.history})

    def _lost_commits(self) -> bool:
        """Whether a Delta table is older than the version that `_positions` named last: its newest commits are gone
        (a loss of power), and so are changes that `_positions` counts as merged."""
        versions = {"history_version": self.history.version}
        if self.current is not None:
            versions["current_version"] = self.current.version
        named = self._of_positions(" AND history_version IS NOT NULL", newest=True)
        return any((row[name] or 0) > version for row in named for name, version in versions.items())

    def _of_positions(self, condition: str, *, newest: bool) -> list[dict[str, Any]]:
        """The table's row of `_positions`, if it has one."""
        if self.noted is None:
            return []
        name, order = _made_up(), "DESC" if newest else "ASC"
        of_table = f"table_name = {self.engine.dialect.text(str(self.table))}"
        return self.engine.listed(
            f"SELECT generation, lsn, history_version, current_version FROM {name} WHERE {of_table}{condition} "
            f"ORDER BY generation {order}, lsn {order} LIMIT 1",
            {name: self.noted},
        )

    def first(self, position: Position) -> Position | None:
        """A position at or below the given one from which the table is known. If there is none, the first one from
        which it is known: its first change, or its row of `_positions` if it has no change."""
        noted = _one(self._of_positions("", newest=False))
        if noted is not None and noted <= position:
            return noted
        changed = _one([{**row, "lsn": row["first"]} for row in self.extents])
        # A change is known behind its commit, a position where it stands.
        behind = None if changed is None else Position(changed.generation, Lsn(changed.lsn + 1))
        return min((position for position in (behind, noted) if position is not None), default=None)

    def first_after(self, time: datetime) -> Position | None:
        """The position of the first change with a later commit time; if there is none, a position of the pipeline.

        `_positions` bounds where such a change can lie, so that files of history behind it are not opened."""
        dialect, bound = self.engine.dialect, None
        if self.noted is not None:
            name = _made_up()
            bound = _one(
                self.engine.listed(
                    f"SELECT generation, min(lsn) AS lsn FROM {name} WHERE committed_at > {dialect.time(time)} "
                    "GROUP BY generation ORDER BY generation LIMIT 1",
                    {name: self.noted},
                )
            )
        below = as_of_query.NEVER if bound is None else bound
        later = _one(self.listed(lambda name: as_of_query.first_after(dialect, name, time, below)))
        return bound if later is None else later

    def exact_from(self) -> Position | None:
        """The position from which the table is exact as a whole; the module's first lines explain it."""
        inexact = _one(self._of_positions(" AND NOT exact", newest=True))
        behind = ""
        if inexact is not None:
            inexact_place = (inexact.generation, int(inexact.lsn))
            behind = f" AND {as_of_query.precedes(inexact_place, ('generation', 'lsn'))}"
        since = _one(self._of_positions(f" AND exact{behind}", newest=False))
        seen = [Position(row["generation"], Lsn(row["seen"] + 1)) for row in self.extents if row["seen"] is not None]
        return None if since is None else max([since, *seen])

    def shows(self, position: Position) -> bool:
        """Whether the newest version of current has the state at the position."""
        if self.current is None:
            return False
        at = self._transaction("current", self.current, self.newest_generation)
        return at is not None and at <= position <= max(at, self.noted_at or at)


@dataclass(frozen=True, slots=True)
class TableAtPosition:
    """A table at a position. `version` is the version of `current` with that state; it is None if only `history`
    has it."""

    reading: TableReading
    position: Position
    version: int | None

    @property
    def exact_from(self) -> Position | None:
        """The position from which the table as a whole equalled the source; None if it is not known. Before it,
        rows may be missing that a later backfill found. A row with `_op` `read` only proves that the row existed at
        its `_commit_lsn`."""
        return self.reading.exact_from()

    @property
    def is_exact(self) -> bool:
        exact_from = self.exact_from
        return exact_from is not None and exact_from <= self.position

    def rows(self) -> Any:
        """The source's columns, and `_commit_lsn`, `_committed_at` and `_op` of the change that wrote the row.
        `_holes` lists columns whose value is not known."""
        name = _made_up()
        return self.reading.engine.frame(self.statement(name), {name: self.reading.history})

    def statement(self, history: str) -> str:
        """The SQL behind `rows`, in the engine's dialect, for a history of the given name."""
        reading = self.reading
        truncated = [Truncated(**row) for row in reading.listed(as_of_query.last_truncate, self.position)]
        return as_of_query.rows(
            reading.engine.dialect, reading.shape, history, self.position, next(iter(truncated), None)
        )

    def current(self) -> Any:
        """The rows without `_op`, from the version of `current` if there is one: the same rows, and faster."""
        if self.version is None or self.reading.current is None:
            return _without_op(self.rows())
        return self.reading.engine.rows(self.reading.current)


def _without_op(rows: Any) -> Any:
    """The rows without the column `_op`; Spark and Arrow have different methods for it."""
    return rows.drop("_op") if hasattr(rows, "drop") else rows.drop_columns(["_op"])


class TablesAtPosition:
    """Tables at one position, by the names that were asked for. A join of them never contains part of a transaction."""

    def __init__(self, pasts: Mapping[str, TableAtPosition]) -> None:
        self._pasts = dict(pasts)
        self.position = next(iter(self._pasts.values())).position

    def __getitem__(self, name: str) -> TableAtPosition:
        return self._pasts[name]

    def create_views(self, schema: str) -> list[str]:
        """Create or replace a view `<schema>.<table>` for each table in the SparkSession's catalogue, which keeps
        showing it at this position. Returns the names. Raises ValueError if two tables would get one name."""
        _refuse_one_name_for_two(schema, self._pasts)
        return [
            _spark(one.reading.engine).create_view(
                schema, TableName.parse(name).name, one.statement(_newest(one.reading))
            )
            for name, one in self._pasts.items()
        ]

    @property
    def versions(self) -> dict[str, int | None]:
        """For each table the version of `current` with the state at the position; None if only `history` has it."""
        return {name: one.version for name, one in self._pasts.items()}


def _pasts(readings: Mapping[str, TableReading], position: Position) -> dict[str, TableAtPosition]:
    for reading in readings.values():
        if reading.applied < position:
            raise MomentNotApplied(table=reading.table, moment=position, applied=reading.applied)
        first = reading.first(position)
        if first is None or position < first:
            raise MomentBeforeHistory(table=reading.table, moment=position, first=first or "nothing yet")
    return {
        name: TableAtPosition(
            reading,
            position,
            reading.current.version if reading.current is not None and reading.shows(position) else None,
        )
        for name, reading in readings.items()
    }


def _position(readings: Sequence[TableReading], moment: Moment) -> Position:
    """The position of a moment. Raises MomentNotApplied for a time up to which changes of these tables may still
    come."""
    asked = positions.read(moment, max(reading.newest_generation for reading in readings))
    if isinstance(asked, Position):
        return asked
    later = [position for reading in readings if (position := reading.first_after(asked)) is not None]
    if not later:
        raise MomentNotApplied(
            table=", ".join(str(reading.table) for reading in readings),
            moment=in_words(asked),
            applied=min(reading.applied for reading in readings),
        )
    return min(later)


def _one(rows: Sequence[Mapping[str, Any]]) -> Position | None:
    """The position in the only row of a statement's result; None without a row."""
    for row in rows:
        return Position(row["generation"], Lsn(row["lsn"]))
    return None


def _made_up() -> str:
    return f"tidemark_{uuid4().hex}"


def _has_place(name: str) -> bool:
    """Whether the name chooses among several tables of that name by "~1"; within quotes "~" is an ordinary
    character."""
    return "~" in name.rpartition('"')[2]
