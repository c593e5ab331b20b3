"""Whatever stands in the place of a file of the lake: LakeFileBroken with its path, and nothing of what it holds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.manifests import SOURCE, manifest_of, plan_of, schema_of
from tests.support.thorough import seeds_of_damage
from tidemark.errors import FormatIsNewer, LakeFileBroken
from tidemark.formats.compaction_plan import CompactionPlan, CompactionResult, TableCompaction
from tidemark.formats.error_record import ErrorFacts, ErrorRecord
from tidemark.formats.generation_file import GenerationFile
from tidemark.formats.json_file import JsonFile
from tidemark.formats.manifest import Claim, KeyPart, StagedFile, Sweep, TableMark
from tidemark.formats.merge_plan import HistoryBase, StagedLevel
from tidemark.formats.merge_result import ChunkResult, Holes, PlanResult, TableResult
from tidemark.formats.replay_plan import ReplayedTable, ReplayPlan, ReplayResult
from tidemark.formats.retired_file import RetiredFile
from tidemark.lsn import Lsn
from tidemark.schema.fingerprint import ColumnPrint, Fingerprint, PartitionPrint
from tidemark.schema.table import Column

SECRET = "a value of a row"

PATH = "shop/staging/g1/a file.json"

FILE = StagedFile("chunks/x.parquet", 3, 400, "ab", 1)
CLAIM = Claim(
    *("b1", "1-7", "6d0cf5b4-2c3f-4a52-9b0e-2f3a5f3e9a11", Lsn(70), "2026-01-02T03:04:00+00:00", Lsn(60), "5:9:6"),
    *(Lsn(65), 3, (FILE,), "repair", (1, 2)),
)
SWEEP = Sweep("b1", "5:9:6", 7, "verify", (KeyPart(None, (SECRET,)), KeyPart((SECRET,), None)), ((SECRET, "ü"),))
COLUMN = Column("size", "numeric(5,2)", 1700, 327686, "decimal(5,2)", "null", 3, "0.00")
SCHEMA = replace(schema_of('shop."a.b"'), columns=(COLUMN,), published=(1, 3))
LOOK = Fingerprint(
    *(16384, 16390, 3, "full", ("id",), (ColumnPrint(1, "id", 23, -1, True, "", None, 700, {"9": "x"}, "0", "c"),)),
    *((PartitionPrint(16400, 16400, True, "700 701", 702),), ("16500",), None, ("id",), 703, ((2, "old"),), ((9, 10),)),
)
ERROR = ErrorRecord("MergeFailed", "FIX_TARGET", "It failed. Look into the log.")
MANIFEST = replace(
    manifest_of(100, 200, "shop.a", claims={"shop.a": (CLAIM,)}, sweeps={"shop.a": (SWEEP,)}, schemas=(SCHEMA,)),
    fingerprints={"shop.a": LOOK},
    transactions=FILE,
    heartbeat_lsn=Lsn(200),
    marks=(TableMark("shop.a", "parked", "TypeChanged", "FIX_TARGET", "It changed.", (1,)),),
)
PLAN = plan_of("p1", MANIFEST)
PLAN = replace(
    PLAN,
    tables=(
        replace(
            PLAN.tables[0],
            after=Lsn(90),
            schemas=(SCHEMA,),
            dropped=(COLUMN,),
            called={"size": 3},
            comments={0: "of the table", 3: "of a column"},
            base=HistoryBase("shop.a", 1, Lsn(50)),
            evidence=(replace(PLAN.tables[0].batches[0], claims=(CLAIM,), sweeps=(SWEEP,)),),
        ),
    ),
    level=StagedLevel(1, Lsn(200), None, ("shop.b",), (), {"shop.b~2": None}),
)
CHUNK = ChunkResult("b1", "1-7", CLAIM.attempt, 3, 1, 1, 1, 0, None, 0, {"size": 1})
MERGED = TableResult("shop.a", Lsn(9), None, {"insert": 1}, Holes({"size": 1}, ((SECRET,),)), (CHUNK,), {"b1": 2}, 0.5)
WHOLE: list[JsonFile] = [
    MANIFEST,
    PLAN,
    PlanResult("p1", "shop", 1, (MERGED, replace(MERGED, error=ERROR, current_version=7)), noted=True),
    GenerationFile(
        *("shop", 1, SOURCE.system_identifier, 1, "shop", Lsn(100), "2026-01-02T03:04:05+00:00", "it was opened"),
        *("fork", ErrorFacts("ChangesLost", {"pipeline": "shop"}), "1 0/0", {"shop.a": ((SECRET,),), "shop.b": None}),
    ),
    RetiredFile("shop", 1, Lsn(100), 700, ("shop.a",)),
    CompactionPlan("p1", "shop", "/lake", "look", ("shop.a",), 2, 7, True),
    CompactionResult("p1", (TableCompaction("shop.a", "history", 3, 1, True, bytes=2**40),)),
    ReplayPlan("p1", "shop", "/lake", "as_of", {"shop.a": ("id",)}, 1, "0/64", 2),
    ReplayResult("p1", (ReplayedTable("shop.a", "as_of/x", "0/64", 3), ReplayedTable("shop.b", error=ERROR))),
]
BY_NAME = pytest.mark.parametrize("whole", WHOLE, ids=lambda whole: type(whole).__name__)


def refused(read: Callable[..., object], text: str | bytes, *why: str) -> None:
    with pytest.raises(LakeFileBroken) as raised:
        read(text, PATH)
    message = str(raised.value)
    assert message.startswith(f"{PATH} in the lake is no ")
    assert all(words in message for words in why), message
    assert SECRET not in message
    assert "\n" not in message


def places(raw: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list of a text with each of its keys."""
    for key in list(raw) if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ():
        yield raw, key
        yield from places(raw[key])


@BY_NAME
def test_a_file_comes_back_as_it_was_written(whole: JsonFile) -> None:
    text = whole.to_json()
    again = type(whole).from_json(text.encode())
    assert again == whole
    assert again.to_json() == text == type(whole).from_json(text).to_json()


@BY_NAME
def test_no_value_of_another_type_is_taken(whole: JsonFile) -> None:
    """Nor quoted: a record that stands where a number does may be anything."""
    read, count = type(whole).from_json, 0
    raw = json.loads(whole.to_json())
    for holder, key in places(raw):
        value = holder[key]
        others: list[Any] = [{SECRET: SECRET}, [SECRET, {}]] if not isinstance(value, dict | list) else [SECRET, 7]
        for other in [*others, 1.5 if not isinstance(value, float) else SECRET]:
            holder[key] = other
            refused(read, json.dumps(raw))
            count += 1
        holder[key] = value
    assert count > 15


@BY_NAME
def test_no_unknown_field_is_passed_over(whole: JsonFile) -> None:
    read, raw = type(whole).from_json, json.loads(whole.to_json())
    refused(read, json.dumps({**raw, SECRET: 1}), "does not belong there")
    refused(read, json.dumps({**raw, f"x` - at `$.{SECRET}\n": 1}), "does not belong there")
    refused(read, json.dumps({**raw, "\ud800": 1}))


@BY_NAME
def test_what_json_lets_pass_is_refused(whole: JsonFile) -> None:
    read, text = type(whole).from_json, whole.to_json()
    body = text.strip()[1:]
    refused(read, '{"format": 1, ' + body, "a name stands twice")
    refused(read, '{"deep": ' + "[" * 200_000 + body, "nested too deeply")
    refused(read, '{"deep": ' + '{"a":' * 200_000, "nested too deeply")
    refused(read, text.encode()[:-2] + b"\xff}", "not UTF-8")
    refused(read, text.encode("utf-16"), "not UTF-8")
    refused(read, "\ufeff" + text)
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        refused(read, f'{{"number": {number}, {body}', "not finite")
    for number in (str(2**63), "-" + str(2**63 + 1), "9" * 100_000):
        refused(read, f'{{"number": {number}, {body}', "64 bits")
    for cut in range(0, len(text), 1 + len(text) // 97):
        refused(read, text[:cut])


def test_the_message_names_the_place() -> None:
    raw = json.loads(MANIFEST.to_json())
    raw["tables"][0]["claims"][0]["watermark_lsn"] = SECRET
    refused(type(MANIFEST).from_json, json.dumps(raw), "- at `$.tables[0].claims[0].watermark_lsn`")
    raw = json.loads(MANIFEST.to_json())
    raw["tables"][0]["claims"][0]["purpose"] = SECRET
    refused(type(MANIFEST).from_json, json.dumps(raw), "- at `$.tables[0].claims[0].purpose`")
    raw = json.loads(MANIFEST.to_json())
    raw["schemas"][0]["columns"][0]["typmod"] = "1"
    refused(
        type(MANIFEST).from_json, json.dumps(raw), "Expected `int`, got `str` - at `$.schemas[0].columns[0].typmod`"
    )
    raw = json.loads(MANIFEST.to_json())
    del raw["schemas"][0]["key"]
    refused(type(MANIFEST).from_json, json.dumps(raw), "missing required field `key` - at `$.schemas[0]`")


@BY_NAME
@pytest.mark.parametrize("seed", seeds_of_damage(31, below=32))
def test_bytes_that_were_changed_anywhere_give_a_file_or_its_error(whole: JsonFile, seed: int) -> None:
    chance, content = random.Random(seed), whole.to_json().encode()
    broken = 0
    for _ in range(1000):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(changed))
            match chance.randrange(3):
                case 0:
                    changed[at] = chance.randrange(256)
                case 1:
                    del changed[at : at + chance.randint(1, 20)]
                case _:
                    changed[at:at] = chance.choice(
                        [b"[", b"{", b'"', b"\\ud800", b"null", b"-1e999", b"\\u0000", b"1" * 99]
                    )
        try:
            assert isinstance(type(whole).from_json(bytes(changed), PATH), type(whole))
        except (LakeFileBroken, FormatIsNewer):
            broken += 1
    assert broken > 500


def test_keys_of_rows_are_not_in_the_words_for_a_generation() -> None:
    (opening,) = [whole for whole in WHOLE if isinstance(whole, GenerationFile)]
    assert SECRET in opening.to_json()
    assert SECRET not in repr(opening)
