"""Writes the tables of options in docs/configuration.md from the models of a pipeline file.

`PYTHONPATH=include python -m sandbox.documents.options_page docs/configuration.md` writes each table between its two
comments, and leaves the rest of the page as it is. A test compares them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidemark.config.sections import SECTIONS, Bounds, descriptions

_TABLE: Final = re.compile(r"(<!-- table: ([^>\n]+) -->\n\n).*?(\n<!-- end of table -->)", re.DOTALL)

# Option -> what the page has for a default that depends on other options.
_DEFAULTS: Final = {
    ("the file", "pipeline"): "the file's name without `.yaml`",
    ("source", "slot"): "`tidemark_<pipeline>`",
    ("source", "publication"): "the slot's name",
    ("tables[]", "evolve"): "the file's",
}


def with_tables(page: str) -> str:
    """The page with the tables as they have to be."""
    return _TABLE.sub(lambda match: match[1] + _table(match[2]) + match[3], page)


def _table(name: str) -> str:
    fixed = name == "fixed bounds"
    section = Bounds if fixed else SECTIONS["" if name == "the file" else name]
    rows = [
        f"| `{option}` | {_default(name, option, section.model_fields[option])} | {meaning} |"
        for option, meaning in descriptions(section).items()
    ]
    head = "| bound | value | meaning |" if fixed else "| option | default | meaning |"
    return "\n".join([head, "|---|---|---|", *rows, ""])


def _default(section: str, option: str, field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        return "required"
    if (section, option) in _DEFAULTS:
        return _DEFAULTS[section, option]
    if default is None or default in ((), {}) or isinstance(default, BaseModel):
        return "none"
    return f"`{default if isinstance(default, str) and default.isidentifier() else json.dumps(default)}`"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))
