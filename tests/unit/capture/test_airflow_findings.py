"""Which Airflow is refused, and what an older one lacks."""

from __future__ import annotations

import pytest

from tidemark.capture.preflight.airflow_findings import absent_features, airflow_findings


def severities(airflow: str | None) -> list[str]:
    return [finding.severity for finding in airflow_findings(airflow)]


@pytest.mark.parametrize(
    ("airflow", "expected"),
    [
        ("2.11.2", ["error"]),
        ("3.0.6", ["error"]),
        ("3.1.0", ["note"]),
        ("3.2.2", ["note"]),
        ("3.3.0rc1", []),
        (None, []),
    ],
)
def test_what_is_older_than_3_1_is_refused_and_what_is_older_than_3_3_is_told(
    airflow: str | None, expected: list[str]
) -> None:
    assert severities(airflow) == expected


def test_nothing_newer_is_refused() -> None:
    assert severities("3.10.0") == severities("4.0.0") == []


def test_each_version_lacks_less_than_the_one_before() -> None:
    counts = [len(absent_features(version)) for version in ("3.1.8", "3.2.2", "3.3.2")]
    assert counts == sorted(set(counts), reverse=True)
    assert counts[-1] == 0


def test_a_refusal_has_both_numbers() -> None:
    (finding,) = airflow_findings("3.0.6")
    assert "3.0.6" in finding.message
    assert "3.1" in finding.message
