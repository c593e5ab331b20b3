"""Holds the configuration of one pipeline as the rest of the library reads it: checked, typed, defaults filled in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tidemark.config.sections import Alerts, Bounds, Follow, Maintenance, Merge
from tidemark.config.table_rules import Evolve, TableRule, TableRules, split_pattern
from tidemark.names import TableName
from tidemark.storage.lake_access import LakeAccess


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One pipeline file. `*_connection` are Airflow connection ids; `lake` is a URI or an absolute local path.

    No file contains `lake_access`: it has the credentials of `lake_connection`, for the code that opens the lake.
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
    alerts: Alerts = field(default_factory=Alerts)
    merge: Merge = field(default_factory=Merge)
    follow: Follow | None = None
    maintenance: Maintenance = field(default_factory=Maintenance)
    bounds: Bounds = field(default_factory=Bounds)
    path: str = ""

    _rules: TableRules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rules", TableRules(self.tables))

    def entries(self, table: TableName) -> list[TableRule]:
        """The entries that match the table, in the file's order."""
        return self._rules.entries(table)

    @property
    def only_names(self) -> tuple[TableName, ...] | None:
        """The tables that the entries name; None if one of them is a pattern."""
        return None if self._rules.has_patterns else self._rules.names

    def rule(self, table: TableName) -> TableRule | None:
        """All entries that match the table, merged; None if none does."""
        return self._rules.merged(table)

    def conflicts(self, table: TableName) -> list[str]:
        """The options that two entries of the table set differently for one column, one sentence each."""
        return self._rules.conflicts(table)

    def evolves(self, table: TableName) -> Evolve:
        """The reaction to a change of the table's definition: of one of its entries, else of the file."""
        rule = self.rule(table)
        return self.evolve if rule is None or rule.evolve is None else rule.evolve

    def guarded_by_name(self, table: TableName) -> tuple[str, ...]:
        """The columns that the table's own entry masks or leaves out: the table must have each of them. Columns of
        a pattern may be missing in some of its tables."""
        entries = [rule for rule in self.entries(table) if rule.exact]
        return tuple(dict.fromkeys(column for rule in entries for column in (*rule.leave_out, *rule.mask)))

    @property
    def digest(self) -> str:
        """A digest of slot, publication, tables and their columns. It is equal for two files that capture the same,
        in whatever form they are written."""
        return _digest(
            [self.slot, self.publication, self.mask_salt_connection, [_normalised(rule) for rule in self.tables]]
        )

    @property
    def columns_digest(self) -> str:
        """A digest of the options for columns: masked, left out, retyped, in clear."""
        rules = [rule for rule in self.tables if rule.leave_out or rule.mask or rule.target or rule.clear]
        return _digest([self.mask_salt_connection, [_normalised(rule) for rule in rules]])

    @property
    def application_name(self) -> str:
        """The application_name of Tidemark's own sessions in pg_stat_activity."""
        return f"tidemark_{self.pipeline}"


def _normalised(rule: TableRule) -> list[Any]:
    """The content of an entry in one form for all ways to write it. Quotes only matter around a pattern."""
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
