"""Splits a psql script into pieces that end where psql waits for a new statement.

A script is lines of SQL with psql's commands (`\\d t`, `\\gset`, `\\if`) and COPY data between them. A piece ends
behind a line that ends a statement, outside of quotes, parentheses, `BEGIN ATOMIC … END`, COPY data and
`\\if … \\endif`. The grammar is that of psqlscan.l, as far as PostgreSQL's tests use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]*)
    | (?P<open_comment> /\*)
    | (?P<dollar> \$(?:[A-Za-z_\x80-\uffff][A-Za-z_0-9\x80-\uffff]*)?\$)
    | (?P<escaped> [eE]')
    | (?P<quote> ['"])
    | (?P<command> \\[^\n]*)
    | (?P<word> [A-Za-z_\x80-\uffff][A-Za-z_0-9$\x80-\uffff]*)
    | (?P<mark> [();])
    """,
    re.VERBOSE,
)
_FROM_STDIN = re.compile(r"\bcopy\b[^;]*\bfrom\s+stdin\b", re.IGNORECASE)
# They end a statement as a semicolon does.
_SENDS = re.compile(r"\\(g|gx|gset|gexec|gdesc|crosstabview|watch|bind|bind_named|parse|sendpipeline|r|reset)\b")
_CONDITION = re.compile(r"^\s*\\(if|endif)\b")


@dataclass
class _Scanner:
    """Where in a statement a script is."""

    inside: str = ""  # what ends the quote or comment that is open
    nested: int = 0  # comments within comments
    depth: int = 0  # parentheses
    atomic: int = 0  # BEGIN ATOMIC and CASE, which END closes
    conditions: int = 0
    words: list[str] = field(default_factory=list)
    text: str = ""  # of the statement so far
    ended: str = ""  # the statement that ended last

    @property
    def is_between_statements(self) -> bool:
        return not (self.inside or self.depth or self.atomic or self.conditions or self.text.strip())

    def add(self, line: str) -> None:
        self.ended = ""
        at = 0
        if not self.inside and (condition := _CONDITION.match(line)):
            self.conditions += 1 if condition[1] == "if" else -1
            return
        while at < len(line):
            if self.inside:
                at = self._close(line, at)
                continue
            token = _TOKEN.search(line, at)
            if token is None:
                self.text += line[at:]
                break
            self.text += line[at : token.start()]
            at = token.end()
            self._take(token)

    def _close(self, line: str, at: int) -> int:
        if self.inside == "*/":
            edge = re.compile(r"/\*|\*/").search(line, at)
            if edge is None:
                return len(line)
            self.nested += 1 if edge[0] == "/*" else -1
            if not self.nested:
                self.inside = ""
            return edge.end()
        if self.inside == "e'":
            edge = re.compile(r"\\.|'", re.DOTALL).search(line, at)
            if edge is None:
                return len(line)
            if edge[0] == "'":
                self.inside = ""
            return edge.end()
        found = line.find(self.inside, at)
        if found < 0:
            return len(line)
        end = found + len(self.inside)
        self.inside = ""
        return end

    def _take(self, token: re.Match[str]) -> None:
        kind, text = token.lastgroup, token[0]
        if kind == "comment":
            return
        if kind == "open_comment":
            self.inside, self.nested = "*/", 1
            return
        if kind == "command":
            if _SENDS.match(text):
                self._end()
            elif text.lower().startswith("\\copy"):
                self.ended = text
            return
        self.text += text
        if kind in ("dollar", "quote"):
            self.inside = text
        elif kind == "escaped":
            self.inside = "e'"
        elif kind == "word":
            self._word(text.lower())
        elif text == "(":
            self.depth += 1
        elif text == ")":
            self.depth = max(0, self.depth - 1)
        elif not self.depth and not self.atomic:
            self._end()

    def _word(self, word: str) -> None:
        before = self.words[-1] if self.words else ""
        if before == "begin" and word == "atomic":
            self.atomic = 1
        elif self.atomic and word == "case":
            self.atomic += 1
        elif self.atomic and word == "end":
            self.atomic -= 1
        self.words.append(word)

    def _end(self) -> None:
        self.ended, self.text, self.depth, self.atomic = self.text, "", 0, 0
        self.words.clear()


def pieces(script: str) -> Iterator[str]:
    """The script's text in order, cut behind each line that ends a statement."""
    scanner, piece, is_data = _Scanner(), "", False
    for line in script.splitlines(keepends=True):
        piece += line
        if is_data:
            is_data = line.rstrip("\n") != "\\."
        else:
            scanner.add(line)
            is_data = bool(_FROM_STDIN.search(scanner.ended))
        if not is_data and scanner.is_between_statements:
            yield piece
            piece = ""
    if piece:
        yield piece
