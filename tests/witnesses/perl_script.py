"""Extracts the SQL that PostgreSQL's Perl tests send to a publisher: its calls, in the order in which they stand.

    $node_publisher->safe_psql('postgres', "INSERT …")   ──► Call("sql", "INSERT …")
    $h->query_safe(qq{BEGIN; …})                         ──► Call("session", "BEGIN; …"), in a session that stays
    $node_publisher->wait_for_catchup('tap_sub')         ──► Call("catch_up")
    $node_publisher->safe_psql('postgres', make_sql($n)) ──► Call("unread")

A call is read where its SQL is a Perl literal ('…', "…", q(…), qq{…}), literals joined by `.`, or a variable that was
given such a text above the call. Perl itself is not run: what a loop or a function's argument makes up is "unread",
and a body that a loop repeats is played once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

# Those that the tests publish from; of two that publish to each other the first.
_PUBLISHER: Final = r"\$(?:node_publisher|node_A|node_pub|node_twoways|h)"
_CALL: Final = re.compile(rf"{_PUBLISHER}->(?P<method>safe_psql|psql|query_safe|wait_for_catchup)\s*\(")
_ASSIGNED: Final = re.compile(r"^\s*(?:my\s+)?\$(?P<name>\w+)\s*=(?![=~])\s*", re.MULTILINE)
_DATABASE: Final = re.compile(r"\s*(?:'postgres'|\"postgres\"|\$db)\s*,")
_NAME: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+)(?![\w\[{]|->))")
_CLOSING: Final = {"(": ")", "{": "}", "[": "]", "<": ">"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


@dataclass(frozen=True, slots=True)
class Call:
    """`kind` is "sql", "session", "catch_up" or "unread"; the last two have no SQL."""

    kind: str
    sql: str = ""


def calls(script: str) -> Iterator[Call]:
    """Those of the publisher, in the order of the text."""
    texts: dict[str, str] = {}
    found = [*_CALL.finditer(script), *_ASSIGNED.finditer(script)]
    for match in sorted(found, key=lambda one: one.start()):
        line = script[script.rfind("\n", 0, match.start()) + 1 : match.start()]
        if line.lstrip().startswith("#"):
            continue
        groups = match.groupdict()
        if name := groups.get("name"):
            text = _text(script, match.end(), texts)
            texts.pop(name, None)
            if text is not None:
                texts[name] = text
        elif groups["method"] == "wait_for_catchup":
            yield Call("catch_up")
        else:
            yield _call(script, match.end(), groups["method"], texts)


def _call(script: str, at: int, method: str, texts: Mapping[str, str]) -> Call:
    if method != "query_safe":
        database = _DATABASE.match(script, at)
        if database is None:
            return Call("unread")
        at = database.end()
    text = _text(script, at, texts)
    if text is None:
        return Call("unread")
    return Call("session" if method == "query_safe" else "sql", text)


def _text(script: str, at: int, texts: Mapping[str, str]) -> str | None:
    """Of literals and variables joined by dots; None where anything else stands there."""
    whole = ""
    while True:
        at = _behind_blanks(script, at)
        literal = _literal(script, at)
        if literal is not None:
            text, at, is_interpolated = literal
            piece = _interpolated(text, texts) if is_interpolated else text
        elif name := _NAME.match(script, at):
            piece, at = texts.get(name[1] or name[2]), name.end()
        else:
            return None
        if piece is None:
            return None
        whole += piece
        at = _behind_blanks(script, at)
        if script[at : at + 1] != ".":
            return whole if script[at : at + 1] in (",", ")", ";") else None
        at += 1


def _behind_blanks(script: str, at: int) -> int:
    """Behind blanks and comments."""
    blanks = re.compile(r"(?:\s+|#[^\n]*)*").match(script, at)
    return at if blanks is None else blanks.end()


def _literal(script: str, at: int) -> tuple[str, int, bool] | None:
    """The text of a literal with its escapes, where it ends, and whether variables in it are replaced."""
    opened = re.compile(r"(?P<quote>['\"])|(?P<operator>qq?)\s*(?P<bracket>[({\[<|!/~])").match(script, at)
    if opened is None:
        return None
    opening = opened["quote"] or opened["bracket"]
    closing = _CLOSING.get(opening, opening)
    depth, end = 1, opened.end()
    while end < len(script):
        letter = script[end]
        if letter == "\\":
            end += 1
        elif letter == closing:
            depth -= 1
            if not depth:
                is_interpolated = opening == '"' or opened["operator"] == "qq"
                text = script[opened.end() : end]
                return (text if is_interpolated else _without_escapes(text, closing)), end + 1, is_interpolated
        elif letter == opening and opening in _CLOSING:
            depth += 1
        end += 1
    return None


def _without_escapes(text: str, closing: str) -> str:
    """A backslash stands for itself unless it is in front of another one, or of what ends the literal."""
    return re.sub(rf"\\([\\{re.escape(closing)}])", r"\1", text)


def _interpolated(text: str, texts: Mapping[str, str]) -> str | None:
    """With the values of its variables; None where one is not known, or where Perl would evaluate an expression."""
    pieces = ""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            hexadecimal = re.compile(r"x\{?([0-9a-fA-F]{1,2})\}?").match(text, at + 1)
            if hexadecimal:
                pieces, at = pieces + chr(int(hexadecimal[1], 16)), hexadecimal.end()
                continue
            pieces += _ESCAPES.get(text[at + 1 : at + 2], text[at + 1 : at + 2])
            at += 2
            continue
        if letter == "$" and re.compile(r"\$[\w{]").match(text, at):
            name = _NAME.match(text, at)
            value = texts.get(name[1] or name[2]) if name else None
            if name is None or value is None:
                return None
            pieces, at = pieces + value, name.end()
            continue
        if letter == "@" and re.compile(r"@[\w{]").match(text, at):
            return None
        pieces += letter
        at += 1
    return pieces
