"""Delta's version is read from its jar's name, and pairs of Spark and Delta that cannot work are refused."""

from __future__ import annotations

import pytest

from tidemark.spark_submit.delta_version import DeltaVersion, delta_version, refusal
from tidemark.spark_submit.jar_versions import DELTA, SPARKS, delta_jars


@pytest.mark.parametrize(
    ("jar", "expected"),
    [
        ("/opt/jars/delta-spark_4.1_2.13-4.4.0.jar", DeltaVersion("4.4.0", "4.1")),
        ("file:/opt/spark/jars/delta-spark_2.13-4.0.0.jar", DeltaVersion("4.0.0", None)),
        ("delta-spark_2.13-4.0.0-amzn-0.jar", DeltaVersion("4.0.0-amzn-0", None)),
        ("/opt/jars/delta-storage-4.4.0.jar", None),
        ("", None),
    ],
)
def test_the_name_says_it(jar: str, expected: DeltaVersion | None) -> None:
    assert delta_version(["/opt/other.jar", jar]) == expected


@pytest.mark.parametrize("spark", SPARKS)
def test_what_is_fetched_for_a_spark_fits_it_and_no_other(spark: str) -> None:
    delta = delta_version(jar.name for jar in delta_jars(spark).jars)
    assert delta == DeltaVersion(DELTA, spark)
    assert delta.is_known
    assert {other: refusal(f"{other}.7", delta) is None for other in SPARKS} == {one: one == spark for one in SPARKS}


@pytest.mark.parametrize(
    ("spark", "delta", "said"),
    [
        ("3.5.6", None, "Spark 3.5.6 is too old: Tidemark works with Spark 4.0, 4.1, 4.2 and"),
        ("4.0.2", DeltaVersion("3.3.2", None), "Delta 3.3.2 with Spark 4.0.2 is too old"),
        ("4.1.4", DeltaVersion("4.4.0", "4.0"), "Delta 4.4.0 is made for Spark 4.0, and this is Spark 4.1.4"),
        ("4.0.2", DeltaVersion("4.0.0-amzn-0", None), None),
        ("4.3.0", None, None),
    ],
)
def test_a_pair_that_cannot_work_is_refused_with_both_numbers(
    spark: str, delta: DeltaVersion | None, said: str | None
) -> None:
    refused = refusal(spark, delta)
    assert refused is None if said is None else refused is not None and refused.startswith(said)
