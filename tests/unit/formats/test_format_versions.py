"""Every file in the lake has a format, which rises with what the file holds; newer ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from tidemark.errors import FormatIsNewer
from tidemark.formats import generation_file, manifest, plan, replay, result, retired_file, upkeep

RECORDED = Path(__file__).with_name("fields.json")

FILES: dict[str, tuple[ModuleType, type[Any]]] = {
    "manifest.json": (manifest, manifest.BatchManifest),
    "plan.json": (plan, plan.MergePlan),
    "result.json": (result, result.PlanResult),
    "generation.json": (generation_file, generation_file.GenerationFile),
    "retired.json": (retired_file, retired_file.RetiredFile),
    "plan.json of a maintenance": (upkeep, upkeep.UpkeepPlan),
    "result.json of a maintenance": (upkeep, upkeep.UpkeepResult),
    "plan.json of a replay": (replay, replay.ReplayPlan),
    "result.json of a replay": (replay, replay.ReplayResult),
}


def names(record: type[Any], seen: set[type[Any]] | None = None) -> Iterator[str]:
    """The fields of a record, and of every record that it can hold."""
    seen = set() if seen is None else seen
    if record in seen:
        return
    seen.add(record)
    for field in fields(record):
        yield f"{record.__name__}.{field.name}"
    for hint in get_type_hints(record).values():
        for part in _parts(hint):
            if is_dataclass(part) and isinstance(part, type):
                yield from names(part, seen)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def readers() -> dict[str, Callable[[str], object]]:
    return {name: record.from_json for name, (_, record) in FILES.items()}


def test_what_a_file_holds_does_not_change_without_its_format() -> None:
    held = {
        name: {"format": module.FORMAT, "fields": sorted(names(record))} for name, (module, record) in FILES.items()
    }
    assert held == json.loads(RECORDED.read_text()), (
        "What a file holds has changed. Raise FORMAT in its module, say beside it what is new, go on reading the older "
        f"one, describe it in docs/formats.md, and write what this test computed to {RECORDED.name}."
    )


@pytest.mark.parametrize("name", FILES)
def test_a_newer_file_is_refused_with_a_sentence_and_a_broken_one_is_none(name: str) -> None:
    read, newest = readers()[name], FILES[name][0].FORMAT
    with pytest.raises(
        FormatIsNewer, match=f"of format {newest + 1}, and this version of Tidemark reads formats up to {newest}"
    ):
        read(json.dumps({"format": newest + 1, "what": "nobody knows"}))
    for broken in ('{"format": 0}', '{"format": "1"}', "{", f'{{"format": {newest}'):
        with pytest.raises(ValueError, match=r"\w"):
            read(broken)
