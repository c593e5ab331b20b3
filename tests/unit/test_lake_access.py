"""An Airflow connection of an object store -> what clients and Spark get of it, and where its secrets are not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import ConnectionInvalid
from tidemark.storage import lake_access
from tidemark.storage.lake_access import LakeAccess

LAKE = "s3a://bucket/lake"
GOOGLE: dict[str, Any] = {"lake": "gs://bucket/lake", "conn_type": "google_cloud_platform"}


def read(lake: str = LAKE, conn_type: str = "aws", **fields: Any) -> LakeAccess:
    fields_read = {"login": "id", "password": "the secret", "extra": {}, **fields}
    return lake_access.read(lake, connection="lake", conn_type=conn_type, **fields_read)


def test_keys_go_to_clients_and_to_a_drivers_environment_and_nowhere_else(tmp_path: Path) -> None:
    extra = {"endpoint_url": "http://store:9000", "region_name": "eu-west-1", "aws_session_token": "the token"}
    access = read(extra=extra)
    assert access.settings == {"endpoint": "http://store:9000", "region": "eu-west-1"}
    assert access.driver_environment(tmp_path) == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "the secret",
        "AWS_SESSION_TOKEN": "the token",
    }
    assert access.spark_settings(LAKE) == {
        "spark.hadoop.fs.s3a.bucket.bucket.endpoint": "http://store:9000",
        "spark.hadoop.fs.s3a.bucket.bucket.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.bucket.bucket.path.style.access": "true",
        "spark.hadoop.fs.s3a.bucket.bucket.endpoint.region": "eu-west-1",
    }
    assert "secret" not in repr(access)
    assert "token" not in repr(access)


def test_a_checksum_is_sent_by_clients_and_by_spark_where_the_connection_asks_for_it() -> None:
    access = read(extra={"config_kwargs": {"request_checksum_calculation": "when_supported"}})
    assert access.settings == {"checksum_algorithm": "SHA256"}
    assert access.spark_settings(LAKE) == {"spark.hadoop.fs.s3a.bucket.bucket.create.checksum.algorithm": "SHA256"}
    assert read(extra={"config_kwargs": {"request_checksum_calculation": "when_required"}}).settings == {}


@pytest.mark.parametrize("key", ['{"private_key": "the secret"}', {"private_key": "the secret"}])
def test_the_key_of_a_service_account_may_be_a_text_or_an_object(key: object, tmp_path: Path) -> None:
    """As Airflow takes it; to leave one out would be to work as the machine's own account. A driver gets it by a file
    that nobody else reads."""
    access = read(**GOOGLE, extra={"keyfile_dict": key})
    assert access.secrets == {"service_account_key": '{"private_key": "the secret"}'}
    assert "the secret" not in repr(access)
    assert access.spark_settings("gs://bucket/lake") == {"spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT"}
    file = Path(access.driver_environment(tmp_path)["GOOGLE_APPLICATION_CREDENTIALS"])
    assert file.read_text() == '{"private_key": "the secret"}'
    assert (file.parent, file.stat().st_mode & 0o777) == (tmp_path, 0o600)


def test_a_driver_gets_the_path_of_a_key_that_lies_on_its_machine(tmp_path: Path) -> None:
    access = read(**GOOGLE, extra={"key_path": "/etc/lake.json"})
    assert access.driver_environment(tmp_path) == {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/lake.json"}
    assert access.is_of_this_machine
    assert list(tmp_path.iterdir()) == []


AZURE = "abfss://lake@store.dfs.core.windows.net/tidemark"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
KEYLESS: dict[str, Any] = {"lake": AZURE, "conn_type": "wasb", "password": None}
SECRET = "${env.TIDEMARK_LAKE_SECRET}"
# What a connection of type wasb has -> what obstore is told, its settings and its secret -> what Spark is told, without
# the prefix and the account that each of its settings has.
OF_AZURE: list[tuple[dict[str, Any], dict[str, str], str, dict[str, str]]] = [
    ({}, {}, "account_key", {"account.auth.type": "SharedKey", "account.key": SECRET}),
    (
        {"password": None, "extra": {"extra__wasb__shared_access_key": "the secret"}},
        {},
        "account_key",
        {"account.auth.type": "SharedKey", "account.key": SECRET},
    ),
    (
        {"password": None, "extra": {"account_key": "the secret"}},
        {},
        "account_key",
        {"account.auth.type": "SharedKey", "account.key": SECRET},
    ),
    (
        {"password": "of another way", "extra": {"sas_token": "the secret"}},
        {},
        "sas_key",
        {"account.auth.type": "SAS", "sas.fixed.token": SECRET},
    ),
    (
        {"password": None, "extra": {"sas_token": "https://store.blob.core.windows.net/?the secret"}},
        {},
        "sas_key",
        {"account.auth.type": "SAS", "sas.fixed.token": SECRET},
    ),
    (
        {"extra": {"tenant_id": "t"}},
        {"tenant_id": "t", "client_id": "id"},
        "client_secret",
        {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": f"{OAUTH}.ClientCredsTokenProvider",
            "account.oauth2.client.id": "id",
            "account.oauth2.client.endpoint": "https://login.microsoftonline.com/t/oauth2/token",
            "account.oauth2.client.secret": SECRET,
        },
    ),
    (
        {"password": None, "extra": {"managed_identity_client_id": "m"}},
        {"client_id": "m"},
        "",
        {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": f"{OAUTH}.MsiTokenProvider",
            "account.oauth2.client.id": "m",
        },
    ),
    (
        {"password": None, "extra": {"managed_identity_client_id": "m", "workload_identity_tenant_id": "t"}},
        {"client_id": "m", "tenant_id": "t"},
        "",
        {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": f"{OAUTH}.WorkloadIdentityTokenProvider",
            "account.oauth2.client.id": "m",
            "account.oauth2.msi.tenant": "t",
        },
    ),
    ({"password": None}, {}, "", {}),
]


@pytest.mark.parametrize(("fields", "settings", "secret", "of_spark"), OF_AZURE)
def test_each_way_into_azure_is_the_same_for_clients_and_for_spark(
    fields: dict[str, Any], settings: dict[str, str], secret: str, of_spark: dict[str, str], tmp_path: Path
) -> None:
    """Spark's settings stand in a command line: one of them names the variable that has the secret."""
    access = read(AZURE, "wasb", **fields)
    assert access.settings == settings
    assert access.secrets == ({secret: "the secret"} if secret else {})
    account = "store.dfs.core.windows.net"
    assert access.spark_settings(AZURE) == {f"spark.hadoop.fs.azure.{k}.{account}": v for k, v in of_spark.items()}
    assert access.driver_environment(tmp_path) == ({"TIDEMARK_LAKE_SECRET": "the secret"} if secret else {})
    assert access.is_of_this_machine == bool(secret)
    assert "the secret" not in f"{access}{access.spark_settings(AZURE)}"


def test_without_keys_the_machines_own_identity_counts(tmp_path: Path) -> None:
    access = read(login=None, password=None, extra={"region_name": "eu-west-1"})
    assert not access.is_of_this_machine
    assert read(**GOOGLE, login=None, password=None).spark_settings("gs://bucket/lake") == {}
    assert access.driver_environment(tmp_path) == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": None}, "one of login and password"),
        ({"extra": {"role_arn": "arn:aws:iam::1:role/r"}}, "role_arn is not known here"),
        ({"conn_type": "postgres"}, "its type is 'postgres'; a lake on s3a:// needs aws"),
        ({"lake": "/lake"}, "a lake at /lake needs none"),
        ({"lake": "gs://bucket/lake"}, "needs google_cloud_platform"),
        (
            {**GOOGLE, "extra": {"extra__google_cloud_platform__impersonation_chain": "a@b"}},
            "impersonation_chain is not known here; let the machine be that account",
        ),
        (
            {"lake": AZURE, "conn_type": "wasb", "extra": {"connection_string": "AccountKey=the secret"}},
            "connection_string is not known here; give it the account's key",
        ),
        (
            {"lake": AZURE, "conn_type": "adls", "password": None, "extra": {"extra__adls__tenant_id": "t"}},
            "needs a client's id as login, its secret as password",
        ),
        (
            {**KEYLESS, "extra": {"workload_identity_tenant_id": "t"}},
            "workload_identity_tenant_id needs the identity's managed_identity_client_id",
        ),
    ],
)
def test_a_connection_that_would_be_another_identity_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConnectionInvalid, match=message) as refused:
        read(**fields)
    assert "the secret" not in str(refused.value)


def test_a_configuration_never_shows_what_its_lakes_connection_holds() -> None:
    from tests.support.pipeline import pipeline_config  # a configuration like any other

    config = pipeline_config("p", "s3a://bucket/lake", ())
    with_keys = dataclasses.replace(config, lake_access=read())
    assert "the secret" not in repr(with_keys)
    assert with_keys == config
    assert with_keys.digest == config.digest
