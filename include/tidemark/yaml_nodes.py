"""The nodes of one YAML file -> its values, with a problem at the line of everything that is not what it has to be.

Nodes rather than values, because nodes know their lines. An unknown key comes with the known one that it resembles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tidemark.pipeline_options import OPTIONS, REQUIRED
from tidemark.wording import closest

_CONNECTION_ID: Final = re.compile(r"[A-Za-z0-9_.:/-]+")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong with a pipeline file; `line` counts from 1, 0 if the file has no line for it."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(slots=True)
class NodeReader:
    """Walks the nodes of one file and collects problems; what is missing or wrong is replaced so that the walk goes
    on."""

    path: Path
    problems: list[Problem] = field(default_factory=list)

    def problem(self, node: Node | None, message: str) -> None:
        self.problems.append(Problem(str(self.path), 0 if node is None else node.start_mark.line + 1, message))

    def at(self, line: int, message: str) -> None:
        self.problems.append(Problem(str(self.path), line, message))

    def section(self, node: Node | None, name: str) -> dict[str, Node]:
        """A mapping with known keys only. `name` is its key in OPTIONS; required options
        that are missing are problems."""
        options, prefix = OPTIONS[name], f"{name}." if name else ""
        if node is None:
            nodes: dict[str, Node] = {}
        elif not isinstance(node, MappingNode):
            self.problem(node, f"{name or 'the file'} must be a mapping with the keys {', '.join(options)}")
            return {}
        else:
            nodes = self.known_keys(node, name)
        if node is not None:
            for key in options:
                if prefix + key in REQUIRED and key not in nodes:
                    self.problem(node, f"{prefix}{key} is missing: {options[key]}")
        return nodes

    def section_or(self, node: Node | None, name: str, key: str) -> dict[str, Node]:
        """A section that may also be written as the value of one of its keys alone."""
        return {key: node} if isinstance(node, ScalarNode) else self.section(node, name)

    def known_keys(self, node: MappingNode, name: str) -> dict[str, Node]:
        options, nodes = OPTIONS[name], dict[str, Node]()
        keys = [str(key.value) for key, _ in node.value]
        for key, value in node.value:
            text = str(key.value)
            if text not in options:
                self.problem(key, f"unknown key {text!r}{f' in {name}' if name else ''}{hint(text, name, keys)}")
            elif text in nodes:
                self.problem(key, f"{text!r} stands twice in the same section")
            else:
                nodes[text] = value
        return nodes

    def text(self, node: Node | None, option: str, form: str = "a text") -> str | None:
        if node is None:
            return None
        if isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:str" and node.value.strip():
            return str(node.value)
        self.problem(node, f"{option} must be {form}, not {kind(node)}")
        return None

    def boolean(self, node: Node | None, option: str, default: bool) -> bool:
        if node is None:
            return default
        if isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:bool":
            return bool(yaml.constructor.SafeConstructor().construct_object(node))
        self.problem(node, f"{option} must be true or false, not {kind(node)}")
        return default

    def integer(self, node: Node, option: str, least: int) -> int | None:
        if isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:int":
            number = int(yaml.constructor.SafeConstructor().construct_object(node))
            if number >= least:
                return number
            self.problem(node, f"{option} must be {least} or more, not {number}")
        else:
            self.problem(node, f"{option} must be a whole number, not {kind(node)}")
        return None

    def share(self, node: Node, what: str) -> float | None:
        if isinstance(node, ScalarNode) and node.tag in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int"):
            number = float(node.value.replace("_", ""))
            if 0 < number <= 1:
                return number
        self.problem(node, f"{what} must be a number above 0, and 1 at most, not {kind(node)}")
        return None

    def name(self, section: dict[str, Node], option: str, default: str, form: re.Pattern[str], described: str) -> str:
        node = section.get(option.rpartition(".")[2])
        text = default if node is None else self.text(node, option)
        if text is not None and not form.fullmatch(text):
            self.problem(node, f"{option} {text!r} is no valid name: {described}")
        return text or default

    def connection(self, section: dict[str, Node], option: str) -> str | None:
        node = section.get(option.rpartition(".")[2])
        text = self.text(node, option)
        if text is not None and ("://" in text or not _CONNECTION_ID.fullmatch(text)):
            self.problem(
                node, f"{option} is the id of an Airflow connection, not an address: put no address or secret here"
            )
        return text

    def column_list(self, node: Node | None) -> tuple[str, ...]:
        if node is None:
            return ()
        if not isinstance(node, SequenceNode):
            self.problem(node, f"leave_out must be a list of columns, not {kind(node)}")
            return ()
        columns = [self.text(entry, "a column of leave_out") for entry in node.value]
        return tuple(column for column in columns if column is not None)

    def column_map(self, node: Node | None, option: str, allowed: tuple[str, ...] = ()) -> dict[str, str]:
        if node is None:
            return {}
        if not isinstance(node, MappingNode):
            self.problem(
                node, f"{option} must be a mapping from column to {' or '.join(allowed) or 'type'}, not {kind(node)}"
            )
            return {}
        by_column: dict[str, str] = {}
        for key, value in node.value:
            column = str(key.value)
            # An unquoted null means the mask of that name.
            allowed_null = is_null(value) and "null" in allowed
            text = "null" if allowed_null else self.text(value, f"{option} of column {column!r}")
            if column in by_column:
                self.problem(key, f"column {column!r} stands twice in {option}")
            if text is not None and allowed and text not in allowed:
                self.problem(
                    value,
                    f"{option} of column {column!r} is {text!r}; it can be "
                    f"{' or '.join(allowed)}{did_you_mean(text, allowed)}",
                )
            elif text is not None:
                by_column[column] = text
        return by_column


def is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def kind(node: Node) -> str:
    if isinstance(node, SequenceNode):
        return "a list"
    if isinstance(node, MappingNode):
        return "a mapping"
    return {"null": "empty", "bool": f"true or false ({node.value})", "str": f"{node.value!r}"}.get(
        node.tag.rpartition(":")[2],
        f"the number {node.value}" if node.tag.endswith((":int", ":float")) else f"{node.value!r}",
    )


def hint(key: str, section: str, keys: Sequence[str]) -> str:
    """The known key that an unknown one resembles and that is not among `keys`, or the section it belongs to."""
    close = did_you_mean(key, tuple(OPTIONS[section]), keys)
    if close:
        return close
    for other, options in OPTIONS.items():
        if key in options and other != section:
            return f"; {key!r} belongs to {other or 'the top of the file'}"
    everywhere = {option: name for name, options in OPTIONS.items() for option in options}
    match = closest(key.lower(), everywhere, taken=OPTIONS[section], cutoff=0.7)
    if match is not None:
        where = everywhere[match]
        return f"; did you mean {match!r} in {where}?" if where else f"; did you mean {match!r} at the top of the file?"
    return f"; known are {', '.join(OPTIONS[section])}"


def did_you_mean(text: str, choices: Sequence[str], taken: Sequence[str] = ()) -> str:
    meant = closest(text.lower(), choices, taken=taken)
    return f"; did you mean {meant!r}?" if meant else ""
