"""A sample of the sequences of `test_definition_changes`, merged by Spark into Delta tables.

What the list of rows decides by itself, what a table holds, is the merge's here. Spark merges whatever the size of the
changes. The tables of a share are merged by the same plans."""

from __future__ import annotations

from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.definitions.book import MakePipeline
from tests.definitions.capturing import Capture
from tests.definitions.delta_lake import DeltaLake
from tests.definitions.sequences import Sequence, at_random, of_length
from tests.definitions.test_definition_changes import SEEDS, TRIGGER, covered, judged, require
from tests.support import merge_ways
from tests.support.pipeline import Pipeline

pytestmark = pytest.mark.thorough

SHARES = 10
SAMPLE = 200


def sample() -> list[Sequence]:
    """As many pairs as random sequences."""
    random = Random(0)
    pairs = random.sample(list(of_length(2)), SAMPLE // 2)
    return [*pairs, *map(at_random, random.sample(range(max(SEEDS, SAMPLE)), SAMPLE // 2))]


@TRIGGER
@pytest.mark.parametrize("share", range(SHARES))
def test_a_sample(
    share: int, has_trigger: bool, make_pipeline: MakePipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_ways.leave_to_spark(monkeypatch)
    lakes: list[DeltaLake] = []

    def capture(pipeline: Pipeline) -> Capture:
        lakes.append(DeltaLake(pipeline, spark))
        return Capture(pipeline, lakes[-1])

    sequences = sample()[share::SHARES]
    counts = covered(judged(make_pipeline, sequences, has_trigger, capture))
    require(counts, with_rows=0.3, with_updates=0.2)
    assert sum(lake.merged for lake in lakes) >= len(sequences)
