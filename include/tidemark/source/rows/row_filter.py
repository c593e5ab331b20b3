"""Parses the row filter of a form and writes the SQL condition that runs at the source: `condition`.

    condition   conjunction { OR conjunction }
    conjunction negation { AND negation }
    negation    NOT negation | ( condition ) | predicate
    predicate   column                                          of type boolean
              | value ( = | <> | != | < | <= | > | >= ) value
              | column [NOT] IN ( literal {, literal} )
              | value [NOT] BETWEEN value AND value
              | column [NOT] (LIKE | ILIKE) text [ESCAPE text]
              | column IS [NOT] (NULL | TRUE | FALSE)
    value       column | literal | moment
    literal     text | [-|+] number | TRUE | FALSE
    moment      ( now() | current_date ) { (+|-) INTERVAL text }

An Airflow user writes the filter, and it runs with the rights of the pipeline's role. So its text is never sent to the
source. This module writes a new condition of captured columns, quoted literals and operators of `pg_catalog`
(`filter_values`). Masked columns are refused, since a filter would select rows by the values that the mask hides.
Source: PostgreSQL documentation, 4.1 "Lexical Structure", 4.1.6 "Operator Precedence".
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import psycopg
from psycopg import sql

from tidemark.errors import RowFilterInvalid
from tidemark.schema.delta_types import PgType
from tidemark.source import filter_values
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.filter_values import BOOL, TEXT, Incomparable, Operand, own

MAX_CHARACTERS: Final = 10_000
MAX_DEPTH: Final = 50

_SENTENCES: Final = {
    "22003": "a number is out of its type's range",
    "22007": "a text is no date or time",
    "22008": "a date or time is out of its type's range",
    "22019": "an escape character is not one character",
    "22025": "a pattern ends in its escape character",
    "22P02": "a text is no value of the type that it is read as",
    "22P05": "a text has a character that the source's encoding lacks",
    "42P22": "it compares two columns with different collations",
    "57014": "it took too long, or somebody cancelled it",
}
_OF_CLASS: Final = {
    "22": "it fails on a value of the table",
    "42": "PostgreSQL does not take it",
    "54": "it is too large",
}

_TOKEN: Final = re.compile(
    r"""
    [ \t\r\n\f\v]* (?:
        (?P<word> [A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
      | (?P<name> "(?:[^"]|"")+")
      | (?P<text> '(?:[^']|'')*')
      | (?P<number> (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<symbol> <> | != | <= | >= | [=<>(),.+-])
      | (?P<end> \Z)
    )
    """,
    re.VERBOSE,
)
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_ASCII_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LIKES: Final = {"like": "~~", "ilike": "~~*"}
# Unquoted, these are not names of columns in PostgreSQL either.
_NO_NAMES: Final = frozenset({"and", "between", "false", "ilike", "in", "is", "like", "not", "null", "or", "true"})
_VALUE: Final = "a column, a literal, now() or current_date"


def condition(conn: psycopg.Connection[Any], table: CapturedTable, text: str, moment: datetime) -> sql.Composed:
    """The filter as SQL (`condition_of`), with the types read from the source."""
    return condition_of(table, catalog.read_types(conn), text, moment)


def condition_of(table: CapturedTable, types: Mapping[int, PgType], text: str, moment: datetime) -> sql.Composed:
    """The filter as SQL over the table's columns, in parentheses. now() is `moment`. Raises RowFilterInvalid."""
    try:
        return _Parser(table, types, text, moment).parse()
    except _Refused as refused:
        raise RowFilterInvalid(table=table.table, detail=str(refused)) from None


def why_it_failed(error: psycopg.Error) -> str:
    """A sentence for an error that a filter raised while it ran. PostgreSQL's own text is not used, because it may
    quote a row's value."""
    sqlstate = error.sqlstate or "unknown"
    sentence = _SENTENCES.get(sqlstate) or _OF_CLASS.get(sqlstate[:2], "PostgreSQL does not run it")
    return f"{sentence} (SQLSTATE {sqlstate})"


# --- tokens -----------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """Internal: `condition_of` raises RowFilterInvalid for it, with the table's name."""


@dataclass(frozen=True, slots=True)
class _Token:
    """A token. `kind` is a group of _TOKEN. `value` is a text or name without its quotes, or a word in lower case.
    `at` is its offset."""

    kind: str
    value: str
    at: int

    @property
    def in_messages(self) -> str:
        """The token for an error message, which never quotes a literal."""
        return {"end": "the end", "text": "a text in quotes", "number": "a number"}.get(self.kind, self.value)


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_CHARACTERS:
        raise _Refused(f"it has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    if (unfit := _NO_TEXT.search(text)) is not None:
        raise _Refused(f"{_place(text, unfit.start())} is a NUL or half a character, which no text in PostgreSQL has")
    tokens: list[_Token] = []
    at = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text) - at - len(text[at:].lstrip(" \t\r\n\f\v"))
            found = "a quote that does not end, or is empty" if text[at] in "'\"" else f"{text[at]!a}"
            raise _Refused(f"{_place(text, at)} is {found}, which is no part of a filter")
        kind = str(match.lastgroup)
        value, at = match[kind], match.end()
        if kind in ("text", "name"):
            value = value[1:-1].replace(value[0] * 2, value[0])
        elif kind == "word":
            value = value.translate(_ASCII_LOWER)
        tokens.append(_Token(kind, value, match.start(kind)))
    return tokens


def _place(text: str, at: int) -> str:
    line, character = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return f"at character {character}" if line == 1 else f"at line {line}, character {character}"


# --- rules ------------------------------------------------------------------------------------------------------------


class _Parser:
    """A recursive descent parser with one method for each rule of the grammar. Each returns SQL or one operand."""

    def __init__(self, table: CapturedTable, types: Mapping[int, PgType], text: str, moment: datetime) -> None:
        self._table = table
        self._types = types
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self._moment = moment.astimezone(UTC)

    def parse(self) -> sql.Composed:
        parsed = self._condition()
        if self._token.kind != "end":
            self._refuse("AND, OR or the end")
        return sql.SQL("({})").format(parsed)

    def _condition(self) -> sql.Composable:
        return self._junction("or", lambda: self._junction("and", self._negation))

    def _junction(self, word: str, part: Callable[[], sql.Composable]) -> sql.Composable:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else sql.SQL("({})").format(sql.SQL(f" {word.upper()} ").join(parts))

    def _negation(self) -> sql.Composable:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Refused(f"it is nested deeper than {MAX_DEPTH} levels")
        if self._takes("not"):
            parsed: sql.Composable = sql.SQL("(NOT {})").format(self._negation())
        elif self._takes("("):
            parsed = self._condition()
            self._needs(")", "AND, OR or )")
        else:
            parsed = self._predicate()
        self._depth -= 1
        return parsed

    def _predicate(self) -> sql.Composable:
        start = self._token
        try:
            return self._test(self._value())
        except Incomparable as reason:
            raise _Refused(f"{_place(self._text, start.at)}: {reason}") from None

    def _test(self, left: Operand) -> sql.Composable:
        if self._token.kind == "symbol" and self._token.value in _COMPARISONS:
            operator = _COMPARISONS[self._advance()]
            return _compared(left, operator, self._value())
        if left.is_column and self._takes("is"):
            return self._null_or_boolean(left)
        negated = self._takes("not")
        word = next((word for word in ("between", "in", *_LIKES) if self._takes(word)), None)
        if word == "between":
            low = _compared(left, ">=", self._value())
            self._needs("and", "AND")
            test: sql.Composable = sql.SQL("({} AND {})").format(low, _compared(left, "<=", self._value()))
        elif word == "in":
            test = self._listed(left)
        elif word is not None:
            test = self._like(left, _LIKES[word])
        elif left.is_column and left.type == BOOL and not negated:
            test = left.sql
        else:
            self._refuse("= <> < <= > >=, BETWEEN, IN, LIKE or IS" if not negated else "BETWEEN, IN or LIKE")
        return sql.SQL("(NOT {})").format(test) if negated else test

    def _null_or_boolean(self, left: Operand) -> sql.Composable:
        negation = "NOT " if self._takes("not") else ""
        words = ("null", "true", "false") if left.type == BOOL else ("null",)
        word = next((word for word in words if self._takes(word)), None)
        if word is None:
            self._refuse(" or ".join(word.upper() for word in words))
        return sql.SQL("({} IS {})").format(left.sql, sql.SQL(f"{negation}{word.upper()}"))

    def _listed(self, left: Operand) -> sql.Composable:
        self._needs("(", "(")
        literals = [self._literal()]
        while self._takes(","):
            literals.append(self._literal())
        self._needs(")", ", or )")
        column, *items = filter_values.written([left, *literals])
        return sql.SQL("({} OPERATOR(pg_catalog.=) ANY (ARRAY[{}]))").format(column, sql.SQL(", ").join(items))

    def _like(self, left: Operand, operator: str) -> sql.Composable:
        filter_values.require_text(left)
        pattern = filter_values.literal(self._needs_a("a text in quotes", "text"), TEXT)
        if self._takes("escape"):
            escape = filter_values.literal(self._needs_a("a text in quotes", "text"), TEXT)
            pattern = sql.SQL("pg_catalog.like_escape({}, {})").format(pattern, escape)
        return _operation(left.sql, operator, pattern)

    # --- values -------------------------------------------------------------------------------------------------------

    def _value(self) -> Operand:
        token = self._token
        if self._takes("current_date"):
            return self._moved(filter_values.moment(self._moment.date().isoformat(), own("date")))
        if token.kind == "word" and (behind := self._tokens[self._next + 1]).kind == "symbol" and behind.value == "(":
            if token.value != "now":
                self._refuse(_VALUE, f"a call of {token.value}")
            self._next += 2
            self._needs(")", ")")
            return self._moved(filter_values.moment(self._moment.isoformat(), own("timestamptz")))
        if token.kind == "name" or (token.kind == "word" and token.value not in _NO_NAMES):
            return self._column()
        return self._literal(_VALUE)

    def _moved(self, moment: Operand) -> Operand:
        """A moment with intervals added and subtracted. A date and an interval make a timestamp."""
        while self._token.kind == "symbol" and self._token.value in ("+", "-"):
            sign = self._advance()
            self._needs("interval", "INTERVAL")
            interval = filter_values.literal(self._needs_a("a text in quotes", "text"), own("interval"))
            type_ = moment.type if moment.type == own("timestamptz") else own("timestamp")
            moment = replace(moment, sql=_operation(moment.sql, sign, interval), type=type_)
        return moment

    def _column(self) -> Operand:
        start, table = self._token, self._table
        names = [self._needs_a("a column", "word", "name")]
        while self._takes("."):
            names.append(self._needs_a("a column", "word", "name"))
        *qualifiers, name = names
        column = next((column for column in table.captured_columns if column.name == name), None)
        if column is None or qualifiers not in ([], [table.name.name], [table.name.schema, table.name.name]):
            raise _Refused(f"{_place(self._text, start.at)}: {'.'.join(names)} is no captured column of the table")
        if name in table.rule.mask:
            raise _Refused(f"{_place(self._text, start.at)}: {name} is masked")
        return filter_values.column(name, column.type_oid, self._types)

    def _literal(self, expected: str = "a literal") -> Operand:
        if self._token.kind == "text":
            return filter_values.constant("text", self._advance())
        for word in ("true", "false"):
            if self._takes(word):
                return filter_values.constant("boolean", word)
        sign = self._advance() if self._token.value in ("+", "-") and self._token.kind == "symbol" else ""
        return filter_values.constant("number", sign + self._needs_a("a number" if sign else expected, "number"))

    # --- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> str:
        token = self._token
        self._next += 1
        return token.value

    def _takes(self, value: str) -> bool:
        """Consume the next token if it is this word or symbol. Returns whether it was."""
        taken = self._token.kind in ("word", "symbol") and self._token.value == value
        self._next += taken
        return taken

    def _needs(self, value: str, expected: str) -> None:
        if not self._takes(value):
            self._refuse(expected)

    def _needs_a(self, expected: str, *kinds: str) -> str:
        if self._token.kind not in kinds:
            self._refuse(expected)
        return self._advance()

    def _refuse(self, expected: str, found: str | None = None) -> NoReturn:
        place = _place(self._text, self._token.at)
        raise _Refused(f"{place} is {found or self._token.in_messages}, where a filter has {expected}")


def _compared(left: Operand, operator: str, right: Operand) -> sql.Composed:
    first, second = filter_values.written([left, right])
    return _operation(first, operator, second)


def _operation(left: sql.Composable, operator: str, right: sql.Composable) -> sql.Composed:
    """`operator` is a constant of this module."""
    return sql.SQL("({} OPERATOR(pg_catalog.{}) {})").format(left, sql.SQL(operator), right)
