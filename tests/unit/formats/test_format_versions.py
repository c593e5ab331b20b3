"""Every file in the lake has a format, which rises with what the file holds; newer ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import msgspec
import pytest

from tidemark.errors import FormatIsNewer, LakeFileBroken
from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.json_file import JsonFile
from tidemark.formats.manifest import BatchManifest
from tidemark.formats.merge_plan import MergePlan
from tidemark.formats.merge_result import PlanResult
from tidemark.formats.replay_plan import ReplayPlan, ReplayResult
from tidemark.formats.retired_file import RetiredFile

RECORDED = Path(__file__).with_name("fields.json")

FILES: dict[str, type[JsonFile]] = {
    "manifest.json": BatchManifest,
    "plan.json": MergePlan,
    "result.json": PlanResult,
    "generation.json": GenerationFile,
    "retired.json": RetiredFile,
    "plan.json of a maintenance": CompactionPlan,
    "result.json of a maintenance": CompactionResult,
    "plan.json of a replay": ReplayPlan,
    "result.json of a replay": ReplayResult,
}


class Made(JsonFile, frozen=True):
    KIND: ClassVar[str] = "made-up file"

    name: str


class MadeLater(JsonFile, frozen=True):
    """The same file, one format later."""

    KIND: ClassVar[str] = "made-up file"
    FORMAT: ClassVar[int] = 2

    name: str
    rows: int = 0


class MadeMuchLater(MadeLater, frozen=True):
    """And after a format that nobody reads any more."""

    FORMAT: ClassVar[int] = 3
    OLDEST: ClassVar[int] = 2


def names(record: type[Any], seen: set[type[Any]] | None = None) -> Iterator[str]:
    """The fields of a record, and of every record that it can hold."""
    seen = set() if seen is None else seen
    if record in seen:
        return
    seen.add(record)
    hints = get_type_hints(record)
    for field in msgspec.structs.fields(record):
        yield f"{record.__name__}.{field.name}"
        for part in _parts(hints[field.name]):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from names(part, seen)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def test_what_a_file_holds_does_not_change_without_its_format() -> None:
    held = {name: {"format": file.FORMAT, "fields": sorted(names(file))} for name, file in FILES.items()}
    assert held == json.loads(RECORDED.read_text()), (
        "What a file holds has changed. Raise FORMAT in its class, give what is new a default, which is what an older "
        f"file means, describe it in docs/formats.md, and write what this test computed to {RECORDED.name}."
    )


def test_no_file_is_left_out() -> None:
    """But for the made-up ones above."""
    assert {file for file in JsonFile.__subclasses__() if file.__module__ != __name__} == set(FILES.values())


@pytest.mark.parametrize("name", FILES)
def test_a_newer_file_is_refused_with_a_sentence_and_a_broken_one_is_none(name: str) -> None:
    read, newest = FILES[name].from_json, FILES[name].FORMAT
    with pytest.raises(
        FormatIsNewer, match=f"of format {newest + 1}, and this version of Tidemark reads formats up to {newest}"
    ):
        read(json.dumps({"format": newest + 1, "what": "nobody knows"}))
    for broken in ('{"format": 0}', '{"format": "1"}', '{"format": true}', "{}", "{", f'{{"format": {newest}'):
        with pytest.raises(LakeFileBroken, match=r"A file in the lake is no .* that can be read"):
            read(broken)


def test_a_file_of_an_older_format_is_read_with_the_defaults_of_what_came_later() -> None:
    older, newer = Made("a"), MadeLater("b", 3)
    assert json.loads(newer.to_json()) == {"format": 2, "name": "b", "rows": 3}
    assert MadeLater.from_json(older.to_json()) == MadeLater("a", 0)
    assert MadeLater.from_json(newer.to_json()) == newer
    with pytest.raises(FormatIsNewer, match="of format 2, and this version of Tidemark reads formats up to 1"):
        Made.from_json(newer.to_json())


def test_a_format_that_is_read_no_more_is_refused() -> None:
    assert MadeMuchLater.from_json(MadeLater("b", 3).to_json()) == MadeMuchLater("b", 3)
    with pytest.raises(LakeFileBroken, match="it begins with no format from 2 to 3"):
        MadeMuchLater.from_json(Made("a").to_json())
