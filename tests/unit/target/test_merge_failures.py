"""What object stores' clients in the JVM raise -> by whose move it is. Those of S3 are asked in tests/faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.errors import LakeFailed, StagedFileGone, TidemarkError
from tidemark.target import merge_failures

OF_GOOGLE = "com.google.cloud.hadoop.repackaged.ossgcs.com.google"
ANSWERS = [
    (f"{OF_GOOGLE}.api.client.http.HttpResponseException", "getStatusCode"),
    (f"{OF_GOOGLE}.api.client.googleapis.json.GoogleJsonResponseException", "getStatusCode"),
    (f"{OF_GOOGLE}.cloud.storage.StorageException", "getCode"),
    ("org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException", "getStatusCode"),
]


@dataclass
class Raised(Exception):
    """As Py4J shows a Java exception: by its methods."""

    name: str
    methods: dict[str, Any] = field(default_factory=dict)

    @property
    def java_exception(self) -> Any:
        java = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: self.name), getCause=lambda: None)
        java.getMessage = lambda: None
        for method, value in self.methods.items():
            setattr(java, method, lambda value=value: value)
        return java


@pytest.mark.parametrize(("name", "method"), ANSWERS)
@pytest.mark.parametrize("status", [400, 401, 403])
def test_what_a_store_refuses_is_no_tables_fault(name: str, method: str, status: int) -> None:
    refused = merge_failures.as_refusal(Raised(name, {method: status}), "public.t", "gs://bucket/lake")
    assert refused is not None
    assert str(status) in str(refused)
    assert not merge_failures.is_transient(Raised(name, {method: status}))


@pytest.mark.parametrize(("name", "method"), ANSWERS)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_a_store_does_not_answer_may_pass(name: str, method: str, status: int) -> None:
    assert merge_failures.as_refusal(Raised(name, {method: status}), "public.t", "gs://bucket/lake") is None
    assert merge_failures.is_transient(Raised(name, {method: status}))


@pytest.mark.parametrize(
    ("word", "leaf"),
    [("PathNotFound", StagedFileGone), ("BlobNotFound", StagedFileGone), ("FilesystemNotFound", LakeFailed)],
)
def test_azures_word_for_a_missing_file_is_of_that_table_and_for_a_missing_container_of_none(
    word: str, leaf: type[TidemarkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_failures, "Py4JJavaError", Raised)
    code = SimpleNamespace(getErrorCode=lambda: word)
    raised = Raised(ANSWERS[-1][0], {"getStatusCode": 404, "getErrorCode": code, "getCondition": ""})
    assert type(merge_failures.as_error(raised, "public.t", "abfss://c@a/lake")) is leaf


def test_a_disk_that_fails_under_the_driver_is_no_tables_fault() -> None:
    error = merge_failures.as_error(OSError(5, "Input/output error", "/lake/shop/x"), "public.t", "/lake")
    assert isinstance(error, LakeFailed)
    assert "Input/output error" in str(error)
