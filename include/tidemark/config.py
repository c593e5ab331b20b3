"""The options of one pipeline, as the rest of the library sees them: checked, typed, defaults filled in.

`config_file` turns include/pipelines/<name>.yaml into these records. The fields of `Bounds` are options of the file's
`bounds:` section under their own names, a few of them fixed; the unit stands last in the name, the default beside it,
the meaning in `help`, and docs/configuration.md is generated from all three.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase, translate
from typing import Any, Final, Literal

from tidemark.lake_access import LakeAccess
from tidemark.names import TableName

# How long a table waits at most where the file says only how many changes make it due.
EVERY_S: Final = 3600

# What `every` counts from: midnight, so that a table that is merged every 15 minutes is merged at the quarters.
_GRID: Final = datetime(2000, 1, 1, tzinfo=UTC)

_NAME_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help, "option": True})


def _fixed(value: Any, help: str) -> Any:
    return field(default=value, metadata={"help": help, "option": False})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every bound and time of a pipeline. All are positive; only `wait_s` may be 0.

    A file may set the options. The fixed ones are the same for every pipeline: there is rarely a reason to change
    them, and a file has 25 options at most.
    """

    batch_rows: int = _option(1_000_000, "changes after which a batch ends at the next commit")
    batch_bytes: int = _option(256 * 2**20, "bytes of WAL messages after which a batch ends at the next commit")
    wait_s: int = _option(0, "seconds for which `changes_waiting` defers when it finds nothing; 0 looks once")
    wal_valve_bytes: int = _option(8 * 2**30, "WAL retained by the slot at which the drain confirms up to staged first")

    drain_stall_s: int = _fixed(120, "seconds without any message before a drain fails with the cause")
    lock_timeout_s: int = _fixed(5, "longest wait for a lock at the source")
    batch_s: int = _fixed(60, "seconds after which a batch ends at the next commit")
    run_s: int = _fixed(600, "seconds after which a capture run's drain starts no further batch")
    heartbeat_s: int = _fixed(900, "an idle pipeline writes and confirms a heartbeat at least this often")
    park_after: int = _fixed(3, "failed runs after which a table with a RETRY error is parked")
    unpark_retry_s: int = _fixed(3600, "how often a table parked after RETRY errors is tried again")
    chunk_rows: int = _fixed(50_000, "rows of a backfill's first chunk, if its form does not say")
    chunk_s: int = _fixed(10, "seconds that a backfill's chunk is made to take, by its size")
    readers: int = _fixed(2, "tasks that read a backfill at the same time, if its form does not say")
    join_wait_s: int = _fixed(300, "how long a backfill waits for transactions older than the table's capture")
    filter_s: int = _fixed(3600, "longest statement of a backfill with a row filter")
    file_settle_s: int = _fixed(600, "how long after a change of the file its older text counts as a worker that lags")
    parked_bytes: int = _fixed(
        10 * 2**30, "staging older than `staging_days` that parked tables may keep before maintenance says so in red"
    )
    backfill_idle_s: int = _fixed(86_400, "an open backfill that nobody reads for so long is closed")


@dataclass(frozen=True, slots=True)
class Maintenance:
    """When the DAG `<pipeline>_maintenance` runs, and how long it keeps what is not needed any more: staging, older
    versions of the Delta tables, and those that are put aside (None: for good). Its thresholds stand in
    `target.upkeep`."""

    schedule: str | None = "@daily"
    staging_days: int = 7
    versions_days: int = 7
    put_aside_days: int | None = 30


@dataclass(frozen=True, slots=True)
class Alerts:
    """Who is told of what must not stay so, and from when on it is worth telling. `health` says whether the task of
    that name is red or skipped where the pipeline is not exact."""

    notifier: str | None = None
    health: Literal["red", "warn"] = "red"
    max_lag_s: int = 3600
    wal_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Merge:
    """When a table is merged, and by how many Spark applications.

    With neither `every_s` nor `rows` each run merges all that is staged. Else a table waits, with what is staged for
    it, until the clock has passed a multiple of `every_s` (UTC), so that tables come due together, or until `rows`
    changes wait. `rows` alone has `EVERY_S` beside it: a table with few changes must come due as well.
    """

    every_s: int | None = None
    rows: int | None = None
    applications: int = 1
    threads: int = 4
    timeout_s: int = 3600

    @property
    def defers(self) -> bool:
        """Whether a table may wait."""
        return self.every_s is not None or self.rows is not None

    def due_at(self, since: datetime) -> datetime:
        """When a table is due whose oldest change waits since then."""
        every = timedelta(seconds=self.every_s or EVERY_S)
        return _GRID + ((since - _GRID) // every + 1) * every


# What becomes of a change of a table's definition, see `capture.deciding`.
Evolve = Literal["follow", "freeze", "ask"]


@dataclass(frozen=True, slots=True)
class TableRule:
    """One entry of `tables:`, a name or a pattern ("schema.*", "schema.order_*"), with what
    holds for the tables it names."""

    pattern: str
    leave_out: tuple[str, ...] = ()
    mask: dict[str, Literal["null", "sha256"]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    line: int = 0
    clear: tuple[str, ...] = ()
    evolve: Evolve | None = None

    @property
    def exact(self) -> bool:
        """Whether the entry names one table rather than a pattern."""
        return all(quoted or not set("*?[") & set(text) for text, quoted in split_pattern(self.pattern))

    def matches(self, table: TableName) -> bool:
        return all(
            value == text if quoted else fnmatchcase(value, text)
            for value, (text, quoted) in zip((table.schema, table.name), split_pattern(self.pattern), strict=True)
        )


def split_pattern(pattern: str) -> tuple[tuple[str, bool], tuple[str, bool]]:
    """`schema.table` as the file has it -> (schema, whether it was quoted), (table, whether it was quoted).

    Names are those of the catalogue, letter by letter; "*", "?" and "[...]" stand for characters as in
    file names. A part in double quotes holds no pattern and may hold anything, a dot or a "*" too.
    Raises ValueError on anything else.
    """
    schema = _NAME_PART.match(pattern)
    if schema is not None and pattern[schema.end() : schema.end() + 1] == ".":
        name = _NAME_PART.fullmatch(pattern, schema.end() + 1)
        if name is not None:
            return _part(schema), _part(name)
    raise ValueError(f"{pattern!r} is not of the form schema.table")


def _part(match: re.Match[str]) -> tuple[str, bool]:
    if match[1] is not None:
        return match[1].replace('""', '"'), True
    return match[2], False


class _Matcher:
    """Entries -> which of them match a table. A file may name five hundred tables and the source have thousands, so the
    entry of a name is looked up, and a pattern is compiled once."""

    def __init__(self, rules: tuple[TableRule, ...]) -> None:
        self._names: dict[tuple[str, str], list[int]] = {}
        self._patterns: list[tuple[int, re.Pattern[str], re.Pattern[str]]] = []
        for number, rule in enumerate(rules):
            schema, name = split_pattern(rule.pattern)
            if rule.exact:
                self._names.setdefault((schema[0], name[0]), []).append(number)
            else:
                self._patterns.append((number, _compiled(*schema), _compiled(*name)))

    @property
    def only_names(self) -> tuple[TableName, ...] | None:
        return None if self._patterns else tuple(TableName(*name) for name in self._names)

    def numbers(self, table: TableName) -> list[int]:
        """The places of the entries that match, ascending."""
        matching = list(self._names.get((table.schema, table.name), ()))
        matching += [
            number
            for number, schema, name in self._patterns
            if schema.match(table.schema) is not None and name.match(table.name) is not None
        ]
        return sorted(matching)


def _compiled(text: str, quoted: bool) -> re.Pattern[str]:
    return re.compile(re.escape(text) + r"\Z" if quoted else translate(text))


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One pipeline file. `*_connection` are Airflow connection ids; `lake` is a URI or an absolute local path.

    `lake_access` is the one field that no file says: what `lake_connection` holds, for whoever opens the lake.
    """

    pipeline: str
    source_connection: str
    slot: str
    publication: str
    manage_publication: bool
    tables: tuple[TableRule, ...]
    lake: str
    ledger_connection: str
    lake_connection: str | None = None
    lake_access: LakeAccess = field(default=LakeAccess(), repr=False, compare=False)
    spark_connection: str = "spark_default"
    spark_conf: dict[str, str] = field(default_factory=dict)
    schedule: str | None = "*/5 * * * *"
    evolve: Evolve = "follow"
    auto_backfill: bool = False
    mask_salt_connection: str | None = None
    filter_role: str | None = None
    alerts: Alerts = Alerts()
    merge: Merge = Merge()
    maintenance: Maintenance = Maintenance()
    bounds: Bounds = Bounds()
    path: str = ""

    _matcher: _Matcher = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matcher", _Matcher(self.tables))

    def entries(self, table: TableName) -> list[TableRule]:
        """The entries that match the table, in the file's order."""
        return [self.tables[number] for number in self._matcher.numbers(table)]

    @property
    def only_names(self) -> tuple[TableName, ...] | None:
        """The tables that the entries name; None if one of them is a pattern."""
        return self._matcher.only_names

    def rule(self, table: TableName) -> TableRule | None:
        """What the file says of one table: all entries that match it, merged; None if none does.

        No entry wins over another. Where two of them say different things of one column, `conflicts` has it, and
        preflight refuses the file; the merged rule then has what the later entry says.
        """
        entries = self.entries(table)
        if not entries:
            return None
        return TableRule(
            pattern=next((rule.pattern for rule in entries if rule.exact), entries[0].pattern),
            leave_out=tuple(dict.fromkeys(column for rule in entries for column in rule.leave_out)),
            mask={column: mask for rule in entries for column, mask in rule.mask.items()},
            target={column: target for rule in entries for column, target in rule.target.items()},
            line=entries[0].line,
            clear=tuple(dict.fromkeys(column for rule in entries for column in rule.clear)),
            evolve=next((rule.evolve for rule in reversed(entries) if rule.evolve is not None), None),
        )

    def evolves(self, table: TableName) -> Evolve:
        """What becomes of a change of the table's definition: as one of its entries says, or the file for all."""
        rule = self.rule(table)
        return self.evolve if rule is None or rule.evolve is None else rule.evolve

    def guarded_by_name(self, table: TableName) -> tuple[str, ...]:
        """The columns that the table's own entry masks or leaves out: it must have each of them. What a pattern says
        may fit only some of its tables."""
        entries = [rule for rule in self.entries(table) if rule.exact]
        return tuple(dict.fromkeys(column for rule in entries for column in (*rule.leave_out, *rule.mask)))

    def conflicts(self, table: TableName) -> list[str]:
        """Where two entries that match the table say different things of one column, one sentence each."""
        earlier_rules: dict[tuple[str, str], tuple[str, TableRule]] = {}
        sentences = []
        deciding = [rule for rule in self.entries(table) if rule.evolve is not None]
        sentences += [
            f"{table}: line {deciding[0].line} says evolve {deciding[0].evolve}, the entry in line {rule.line} says "
            f"evolve {rule.evolve}"
            for rule in deciding[1:]
            if rule.evolve != deciding[0].evolve
        ]
        for rule in self.entries(table):
            words = [("use", column, "leave out") for column in rule.leave_out]
            words += [("use", column, f"mask with {mask}") for column, mask in rule.mask.items()]
            words += [("use", column, "capture in clear") for column in rule.clear]
            words += [("type", column, f"type {target}") for column, target in rule.target.items()]
            for about, column, word in words:
                earlier, by = earlier_rules.setdefault((about, column), (word, rule))
                if earlier != word and by is not rule:
                    sentences.append(
                        f"column {column!r} of {table}: line {by.line} says {earlier}, the entry in line {rule.line} "
                        f"says {word}"
                    )
        return sentences

    @property
    def digest(self) -> str:
        """A digest of what the file says of slot, publication, tables and their columns: equal for two files that
        capture the same, however they are written."""
        return _digest([self.slot, self.publication, self.mask_salt_connection, [_meant(rule) for rule in self.tables]])

    @property
    def columns_digest(self) -> str:
        """A digest of what the file says of columns: masked, left out, retyped, in clear."""
        rules = [rule for rule in self.tables if rule.leave_out or rule.mask or rule.target or rule.clear]
        return _digest([self.mask_salt_connection, [_meant(rule) for rule in rules]])

    @property
    def application_name(self) -> str:
        """What Tidemark's own backends call themselves in pg_stat_activity."""
        return f"tidemark_{self.pipeline}"


def _meant(rule: TableRule) -> list[Any]:
    """What an entry says, however it is written; quotes around no pattern mean nothing."""
    names = split_pattern(rule.pattern)
    return [
        [[text, quoted and bool(set("*?[") & set(text))] for text, quoted in names],
        sorted(set(rule.leave_out)),
        sorted(rule.mask.items()),
        sorted(rule.target.items()),
        sorted(set(rule.clear)),
    ]


def _digest(entries: list[Any]) -> str:
    *others, rules = entries
    return hashlib.sha256(json.dumps([*others, sorted(rules)]).encode()).hexdigest()
