"""Parses PostgreSQL's isolation specifications: sessions, their steps, and the orders in which the steps are played.

The grammar is that of specparse.y: `setup { SQL }`, `teardown { SQL }`, `session NAME`, `step NAME { SQL }`,
`permutation STEP STEP(MARKER, …) …`, with comments from `#` to the end of the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | \#[^\n]* )
    | (?P<sql> \{ [^}]* \} )
    | (?P<quoted> " (?: [^"\n] | "" )* " )
    | (?P<name> [A-Za-z_\x80-\uffff] [A-Za-z0-9_$\x80-\uffff]* )
    | (?P<number> [0-9]+ )
    | (?P<mark> [(),*] )
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = ("setup", "teardown", "session", "step", "permutation")


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One step of a permutation; the next one does not wait until a step that `is_let_go` has ended."""

    name: str
    is_let_go: bool = False


@dataclass(slots=True)
class SpecSession:
    name: str
    setup: list[str] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)  # name -> SQL
    teardown: list[str] = field(default_factory=list)


@dataclass(slots=True)
class IsolationSpec:
    """SQL of the set-up, the sessions in order, and the permutations that the file lists."""

    setup: list[str] = field(default_factory=list)
    teardown: list[str] = field(default_factory=list)
    sessions: list[SpecSession] = field(default_factory=list)
    listed: list[list[PlayedStep]] = field(default_factory=list)

    def permutations(self) -> Iterator[list[PlayedStep]]:
        """Those that are listed; without any, every order that keeps each session's own."""
        if self.listed:
            yield from self.listed
        else:
            yield from _interleaved([[PlayedStep(step) for step in session.steps] for session in self.sessions])

    def session_of(self, step: str) -> SpecSession:
        """Raises LookupError for a step that no session has."""
        for session in self.sessions:
            if step in session.steps:
                return session
        raise LookupError(step)


def drawn(orders: list[list[PlayedStep]], seed: str, most: int, beyond: int = 0) -> list[list[PlayedStep]]:
    """`most` of the orders, drawn by the seed; 0: all. With `beyond`, only of those that `drawn(orders, seed, beyond)`
    lacks."""
    if beyond:
        played = set(_places(orders, seed, beyond))
        orders = [order for place, order in enumerate(orders) if place not in played]
    return [orders[place] for place in _places(orders, seed, most or len(orders))]


def _places(orders: list[list[PlayedStep]], seed: str, most: int) -> list[int]:
    return sorted(Random(seed).sample(range(len(orders)), min(most, len(orders))))


def parse(text: str) -> IsolationSpec:
    """Raises ValueError where the text is not a specification."""
    return _Parser(list(_tokens(text))).spec()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"not a specification, at line {text.count(chr(10), 0, at) + 1}: {text[at : at + 40]!r}")
        at = token.end()
        kind = str(token.lastgroup)
        if kind == "sql":
            yield kind, token[0][1:-1]
        elif kind == "quoted":
            yield "identifier", token[0][1:-1].replace('""', '"')
        elif kind == "name":
            yield ("keyword" if token[0] in _KEYWORDS else "identifier"), token[0]
        elif kind != "space":
            yield kind, token[0]
    yield "end", ""


@dataclass
class _Parser:
    tokens: list[tuple[str, str]]
    at: int = 0

    def spec(self) -> IsolationSpec:
        spec = IsolationSpec()
        while self._next("keyword", "setup"):
            spec.setup.append(self._take("sql"))
        if self._next("keyword", "teardown"):
            spec.teardown.append(self._take("sql"))
        while self._next("keyword", "session"):
            spec.sessions.append(self._session())
        while self._next("keyword", "permutation"):
            spec.listed.append(list(self._permutation()))
        self._take("end")
        return spec

    def _session(self) -> SpecSession:
        session = SpecSession(self._take("identifier"))
        if self._next("keyword", "setup"):
            session.setup.append(self._take("sql"))
        while self._next("keyword", "step"):
            name = self._take("identifier")
            session.steps[name] = self._take("sql")
        if self._next("keyword", "teardown"):
            session.teardown.append(self._take("sql"))
        return session

    def _permutation(self) -> Iterator[PlayedStep]:
        while self.tokens[self.at][0] == "identifier":
            name, is_let_go = self._take("identifier"), False
            if self._next("mark", "("):
                while not self._next("mark", ")"):
                    is_let_go = self._marker() or is_let_go
            yield PlayedStep(name, is_let_go)

    def _marker(self) -> bool:
        """Whether it is `*`. The others say which of two answers is printed first."""
        if self._next("mark", "*"):
            return True
        if not self._next("mark", ","):
            self._take("identifier")
            if self._next("identifier", "notices"):
                self._take("number")
        return False

    def _next(self, kind: str, text: str) -> bool:
        """Step over the next token if it is this one."""
        found = self.tokens[self.at] == (kind, text)
        self.at += found
        return found

    def _take(self, kind: str) -> str:
        found, text = self.tokens[self.at]
        if found != kind:
            raise ValueError(f"{kind} expected, not {found} {text[:40]!r}")
        self.at += 1
        return text


def _interleaved(sessions: list[list[PlayedStep]]) -> Iterator[list[PlayedStep]]:
    left = [session for session in sessions if session]
    if not left:
        yield []
    for number, session in enumerate(left):
        for rest in _interleaved([*left[:number], session[1:], *left[number + 1 :]]):
            yield [session[0], *rest]
