"""Matches tables with the entries of a pipeline file, and merges the options of all matching entries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from typing import Literal

from tidemark.names import TableName

_NAME_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

# The reaction to a change of a table's definition, see `capture.definitions.evolve_decisions`.
Evolve = Literal["follow", "freeze", "ask"]


@dataclass(frozen=True, slots=True)
class TableRule:
    """One entry of `tables:`, a name or a pattern ("schema.*", "schema.order_*"), with the options of its tables.
    `line` is that of the file."""

    pattern: str
    leave_out: tuple[str, ...] = ()
    mask: dict[str, Literal["null", "sha256"]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    line: int = field(default=0, compare=False)
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

    Names are compared with the catalogue's exactly. "*", "?" and "[...]" stand for characters as in file names. A part
    in double quotes is no pattern and may have any character, a dot or a "*" too. Raises ValueError for any other text.
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


class TableRules:
    """All entries of one file. A file may name five hundred tables, and the source may have thousands: so a
    dictionary has the entries of names, and each pattern is compiled once."""

    def __init__(self, rules: tuple[TableRule, ...]) -> None:
        self._rules = rules
        self._names: dict[TableName, list[int]] = {}
        self._patterns: list[tuple[int, re.Pattern[str], re.Pattern[str]]] = []
        for number, rule in enumerate(rules):
            schema, name = split_pattern(rule.pattern)
            if rule.exact:
                self._names.setdefault(TableName(schema[0], name[0]), []).append(number)
            else:
                self._patterns.append((number, _compiled(*schema), _compiled(*name)))

    @property
    def names(self) -> tuple[TableName, ...]:
        """The tables that entries name without a pattern."""
        return tuple(self._names)

    @property
    def has_patterns(self) -> bool:
        return bool(self._patterns)

    def entries(self, table: TableName) -> list[TableRule]:
        """The entries that match the table, in the file's order."""
        matching = list(self._names.get(table, ()))
        matching += [
            number
            for number, schema, name in self._patterns
            if schema.match(table.schema) is not None and name.match(table.name) is not None
        ]
        return [self._rules[number] for number in sorted(matching)]

    def merged(self, table: TableName) -> TableRule | None:
        """The options of one table: all entries that match it, merged; None if none does.

        No entry takes precedence. If two of them set different options for one column, `conflicts` returns that, and
        preflight refuses the file. The merged rule then has the later entry's option.
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

    def conflicts(self, table: TableName) -> list[str]:
        """The options that two entries of the table set differently for one column, one sentence each."""
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


def _compiled(text: str, quoted: bool) -> re.Pattern[str]:
    return re.compile(re.escape(text) + r"\Z" if quoted else translate(text))
