"""Definitions that change in every way between two looks: each table is equal to its source or says that it may not be.

The kinds of change, alone, in pairs and in random sequences, with and without changes of rows, in one transaction and
in several, with a chunk of a backfill in any gap; each without the event trigger and with it. `make test` plays every
kind, with the trigger or without it, and a share of the rest; `make faults` both, all pairs and 10,000 random sequences
(TIDEMARK_DEFINITIONS_SEEDS)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice, pairwise

import pytest

from tests.definitions.altered_table import BASES
from tests.definitions.book import MakeCapture, MakePipeline, Outcome, play_all
from tests.definitions.capturing import Capture
from tests.definitions.expected_marks import MARKED, REWRITES_WITHOUT_EVENT
from tests.definitions.sequences import (
    KINDS,
    OF_LISTED,
    OF_PARTITIONS,
    Sequence,
    at_random,
    fits,
    of_length,
    pairs_that_play,
)
from tests.definitions.shortest import shortest
from tests.support.thorough import either

AT_ONCE = 100
MOST_SHOWN = 3
# What changes something only behind another kind.
NEEDS_ANOTHER = {
    "set_expression",
    "drop_expression",
    "key_added",
    "identity_default",
    "logged",
    "partition_logged",
    "leaves_its_parent",
}
# What alters a type that no rows read otherwise for: without need it marks a column of it that came just before.
SPELLED_ANEW = {"value_added_to_enum", "attribute_renamed", "enum_renamed_and_back"}
COLUMNS_OF_TYPES = {
    "add_of_enum_with_constant",
    "replaced_in_one_statement",
    "replaced_in_one_transaction",
    "replaced_in_two",
    "swap_with_another_table",
}
# What gives partitions their files.
NEW_FILES = {"partition_created", "truncate"}
# PostgreSQL 18 ends a statement with this internal error now and then: ADD COLUMN of a partitioned table behind a
# SAVEPOINT, in the transaction that altered a domain.
INTERNAL_ERROR = "cannot start a subtransaction when there are unprocessed inval messages"
SEEDS = int(os.environ.get("TIDEMARK_DEFINITIONS_SEEDS", "10000"))
FIRST = int(os.environ.get("TIDEMARK_DEFINITIONS_FIRST", "0"))
TRIGGER = pytest.mark.parametrize("has_trigger", [False, True], ids=["without_trigger", "with_trigger"])
EITHER = pytest.mark.parametrize("has_trigger", either(without_trigger=False, with_trigger=True))


def wrong(outcome: Outcome) -> str:
    """What is not as it shall be."""
    if outcome.invalid:
        return "" if outcome.invalid.endswith(INTERNAL_ERROR) else f"PostgreSQL refused {outcome.invalid}"
    if outcome.fault:
        return outcome.fault
    return "" if outcome.is_exact or may_be_marked(outcome) else f"with the trigger it is {outcome.first}"


def may_be_marked(outcome: Outcome) -> bool:
    """Without the trigger, or by a kind that marks its table, or while the table cannot be captured at all."""
    kinds = set(outcome.sequence.kinds)
    rewrites = set(REWRITES_WITHOUT_EVENT)
    if outcome.chunks or outcome.sequence.base == "partitioned" or "swap_with_another_table" in kinds:
        # A chunk is compared by its files, and so is a table before its first run. That it was the root's TRUNCATE is
        # told by the last transaction that wrote a leaf's row in pg_class.
        rewrites.add("truncate")
    rewritten_beside_another = len(outcome.sequence.kinds) > 1 and not rewrites.isdisjoint(kinds)
    is_spelled_anew = not SPELLED_ANEW.isdisjoint(kinds) and not COLUMNS_OF_TYPES.isdisjoint(kinds)
    is_expected = rewritten_beside_another or is_spelled_anew or not MARKED.isdisjoint(kinds)
    is_expected |= fills_new_files(outcome.sequence) or creates_out_of_sight(outcome.sequence)
    # PostgreSQL vacuums one partition after the other, and TRUNCATE of each by its name would leave the same.
    is_expected |= outcome.sequence.base == "partitioned" and "vacuum_full" in kinds
    return not outcome.has_trigger or is_expected or bool(outcome.mending)


def fills_new_files(sequence: Sequence) -> bool:
    """Whether rows come to partitions in the transaction that gave them their files: if it truncates one of them by its
    name behind these, no message and no look tells."""
    has_rows = bool(sequence.changes) or "rolled_back" in sequence.kinds
    is_one = sequence.base == "partitioned" and sequence.together
    return is_one and has_rows and not NEW_FILES.isdisjoint(sequence.kinds)


def creates_out_of_sight(sequence: Sequence) -> bool:
    """Whether a table is created that is not known to be complete from its first row: it leaves its schema before its
    first run, and may have had a name there that the file does not have; or a savepoint's transaction created it."""
    kinds = set(sequence.kinds)
    has_savepoint = sequence.together and "rolled_back" in kinds
    return "swap_with_another_table" in kinds and (has_savepoint or "another_schema_and_back" in kinds)


def judged(
    make: MakePipeline, sequences: Iterable[Sequence], has_trigger: bool, capture: MakeCapture = Capture
) -> list[Outcome]:
    """The outcomes, none of which is wrong; what is, is shown as the shortest SQL."""
    outcomes = list(play_all(make, list(sequences), has_trigger, AT_ONCE, capture))
    wrongs = [outcome for outcome in outcomes if wrong(outcome)]
    shown = []
    for outcome in wrongs[:MOST_SHOWN]:
        short = shortest(make, outcome, capture) if outcome.fault and not outcome.invalid else outcome
        shown.append(f"{wrong(short) or short.fault or wrong(outcome)}\n{short.sql()}")
    listed = "\n".join(f"{outcome.sequence}: {wrong(outcome)}" for outcome in wrongs)
    assert not wrongs, f"{len(wrongs)} of {len(outcomes)}:\n{listed}\n\n" + "\n\n".join(shown)
    return outcomes


def covered(outcomes: Collection[Outcome]) -> Counter[str]:
    """What was played, and what flowed."""
    counts: Counter[str] = Counter(sequences=len(outcomes))
    for outcome in outcomes:
        played = outcome.script.played if outcome.script else ()
        counts.update(f"kind {kind}" for kind in set(played))
        counts["pairs"] += len(set(pairwise(played)))
        counts["with rows"] += outcome.changes > 0
        counts["with updates"] += outcome.updates > 0
        counts["with a chunk"] += outcome.chunks > 0
        counts["in one transaction"] += outcome.sequence.together
        counts["in several"] += not outcome.sequence.together
        counts[f"base {outcome.sequence.base}"] += 1
        counts[outcome.first.word] += 1
    return counts


def require(counts: Counter[str], **shares: float) -> None:
    """At least these shares of the sequences, by what `covered` counts."""
    for what, share in shares.items():
        name = what.replace("_", " ")
        assert counts[name] >= share * counts["sequences"], f"{name}: {counts[name]} of {counts['sequences']}"


@EITHER
def test_each_kind_alone(has_trigger: bool, make_pipeline: MakePipeline) -> None:
    """In the way that shows most. What every base has in common is played of one."""
    special = {"partitioned": OF_PARTITIONS, "listed": OF_LISTED}
    sequences = [
        sequence
        for sequence in of_length(1)
        if (sequence.base == "keyed" or special.get(sequence.base, frozenset()).intersection(sequence.kinds))
        and sequence.changes
        and not sequence.together
    ]
    outcomes = judged(make_pipeline, sequences, has_trigger)
    counts = covered(outcomes)
    require(counts, with_rows=0.9, with_updates=0.8, with_a_chunk=0.2)
    without = {kind for kind in KINDS if not counts[f"kind {kind}"]}
    assert without == NEEDS_ANOTHER, "kinds that alone change nothing"


@pytest.mark.thorough
@TRIGGER
@pytest.mark.parametrize("base", BASES)
def test_each_kind_alone_in_every_way(base: str, has_trigger: bool, make_pipeline: MakePipeline) -> None:
    sequences = [sequence for sequence in of_length(1) if sequence.base == base]
    require(covered(judged(make_pipeline, sequences, has_trigger)), with_rows=0.4, with_updates=0.3, with_a_chunk=0.2)


@pytest.mark.thorough
@EITHER
def test_some_pairs_and_some_random_sequences(has_trigger: bool, make_pipeline: MakePipeline) -> None:
    pairs = list(of_length(2))
    some = pairs[has_trigger :: len(pairs) // 20]
    counts = covered(judged(make_pipeline, [*some, *map(at_random, range(20))], has_trigger))
    require(counts, with_rows=0.4, with_updates=0.3, with_a_chunk=0.2, in_several=0.2, in_one_transaction=0.2)


def test_the_grammar_has_what_it_promises() -> None:
    assert len(KINDS) >= 40
    pairs = {sequence.kinds for sequence in of_length(2)}
    assert pairs == {(one, other) for one in KINDS for other in KINDS if any(fits(base, one, other) for base in BASES)}


@pytest.mark.thorough
@TRIGGER
@pytest.mark.parametrize("share", range(20))
def test_all_pairs(share: int, has_trigger: bool, make_pipeline: MakePipeline) -> None:
    sequences = list(islice(pairs_that_play(), share, None, 20))
    require(covered(judged(make_pipeline, sequences, has_trigger)), with_rows=0.4, with_updates=0.3, with_a_chunk=0.2)


@pytest.mark.thorough
@TRIGGER
@pytest.mark.parametrize("share", range(20))
def test_random_sequences(share: int, has_trigger: bool, make_pipeline: MakePipeline) -> None:
    sequences = map(at_random, range(FIRST + share, FIRST + SEEDS, 20))
    counts = covered(judged(make_pipeline, sequences, has_trigger))
    require(counts, with_rows=0.4, with_updates=0.3, with_a_chunk=0.2, in_several=0.2, in_one_transaction=0.2)
