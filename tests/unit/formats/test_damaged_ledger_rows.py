"""Rows of the ledger whose JSON was changed by hand, by seed: read as a record, or refused by NotStrictJson."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.support.thorough import seeds_of_damage
from tests.unit.formats.test_hostile_files import CLAIM, ERROR, FILE, LOOK, SCHEMA, SECRET, SWEEP, places
from tidemark.formats.error_record import ErrorFacts
from tidemark.strict_json import JsonRecord, NotStrictJson

RECORDS: list[JsonRecord] = [FILE, CLAIM, SWEEP, *(SWEEP.parts or ()), SCHEMA, LOOK, ERROR, ErrorFacts("X", {"a": "b"})]
DAMAGES = 60
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 10**400, 1.5, 1e308, "", SECRET, "0/64", "\0", "\ud800", "9" * 5000),
    *([], [[]], [SECRET] * 3, {}, {SECRET: SECRET}, {"": None}),
)


def damaged(random_: random.Random, raw: Any) -> Any:
    """The JSON with values replaced, fields lost, doubled under another name, or nested."""
    raw = copy.deepcopy(raw)
    for _ in range(random_.choice((1, 1, 2, 5))):
        if not (there := [*places(raw)]):
            return raw
        holder, key = random_.choice(there)
        match random_.randrange(4):
            case 0:
                holder[key] = copy.deepcopy(random_.choice(HOSTILE))
            case 1:
                del holder[key]
            case 2:
                holder[key] = [holder[key]]
            case _ if isinstance(holder, dict):
                holder[random_.choice(["", SECRET, "\ud800", "format"])] = holder[key]
            case _:
                holder.insert(0, holder[key])
    return raw


@pytest.mark.parametrize("seed", seeds_of_damage(0, below=200))
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_damaged_row_is_refused_by_name_or_read(record: JsonRecord, seed: int) -> None:
    random_ = random.Random(seed)
    refusals = []
    for _ in range(DAMAGES):
        try:
            json.dumps(type(record).from_json(damaged(random_, record.to_json())).to_json())
        except NotStrictJson as error:
            refusals.append(str(error))
    assert len(refusals) > DAMAGES // 4
    assert not [words for words in refusals if SECRET in words], "it quotes what it refuses"
