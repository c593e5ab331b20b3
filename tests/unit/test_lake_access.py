"""An Airflow connection of an object store -> what clients and Spark get of it, and where its secrets are not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tidemark import lake_access
from tidemark.errors import ConnectionInvalid
from tidemark.lake_access import LakeAccess

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


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"password": "the secret"}, "fs.azure.account.key.store.dfs.core.windows.net"),
        ({"extra": {"tenant_id": "t"}}, "fs.azure.account.oauth2.client.secret.store.dfs.core.windows.net"),
        (
            {"password": None, "extra": {"sas_token": "the secret"}},
            "fs.azure.sas.fixed.token.store.dfs.core.windows.net",
        ),
    ],
)
def test_a_secret_of_azure_is_named_in_a_setting_and_lies_in_the_environment(
    fields: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    """Each of the three that a connection may hold; the setting stands in a command line."""
    lake = "abfss://lake@store.dfs.core.windows.net/tidemark"
    access = read(lake, "wasb", **fields)
    settings = access.spark_settings(lake)
    assert settings[f"spark.hadoop.{setting}"] == "${env.TIDEMARK_LAKE_SECRET}"
    assert "the secret" not in str(settings)
    assert access.driver_environment(tmp_path) == {"TIDEMARK_LAKE_SECRET": "the secret"}


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
