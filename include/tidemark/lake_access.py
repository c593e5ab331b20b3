"""What an Airflow connection says of the lake's object store -> how clients and Spark get at it.

Secrets are kept apart from settings and never shown: they go to a client in this process, and to a Spark driver by its
environment (R10). Without a connection, or one without keys, the machine's own identity counts: an instance profile, a
web identity, a container's role, as clients and S3A find it by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tidemark.errors import ConnectionInvalid

# Scheme of the lake -> the types of an Airflow connection that belong to it.
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3a": ("aws",),
    "gs": ("google_cloud_platform",),
    "abfss": ("wasb", "adls", "azure_data_lake"),
}

# Who may assume a role does it by the machine's identity; none of these is known here, and to leave one out in silence
# would be to work as somebody else.
_UNKNOWN_OF_AWS: Final = ("role_arn", "assume_role_method", "profile_name", "credential_source", "service_config")
_UNKNOWN_OF_GOOGLE: Final = (
    "impersonation_chain",
    "key_secret_name",
    "credential_config_file",
    "is_anonymous",
    "idp_issuer_url",
)


@dataclass(frozen=True, slots=True)
class LakeAccess:
    """`settings` and `secrets` by the names that obstore has for them; `repr` hides the secrets."""

    settings: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_secrets(self) -> bool:
        return bool(self.secrets)

    def driver_environment(self) -> dict[str, str]:
        """The variables by which S3A in a driver has the secrets; Spark hands them on to its executors, encrypted where
        `spark.network.crypto.enabled` or TLS says so."""
        names = {
            "access_key_id": "AWS_ACCESS_KEY_ID",
            "secret_access_key": "AWS_SECRET_ACCESS_KEY",
            "session_token": "AWS_SESSION_TOKEN",
        }
        return {names[key]: value for key, value in self.secrets.items() if key in names}

    def spark_settings(self, lake: str) -> dict[str, str]:
        """What Spark is told of the bucket besides: no secret, it stands in a command line."""
        uri = urlsplit(lake)
        if uri.scheme != "s3a":
            return {}
        bucket = f"spark.hadoop.fs.s3a.bucket.{uri.netloc}"
        settings = {}
        if endpoint := self.settings.get("endpoint"):
            settings[f"{bucket}.endpoint"] = endpoint
            settings[f"{bucket}.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
            if self.settings.get("virtual_hosted_style_request") != "true":
                settings[f"{bucket}.path.style.access"] = "true"
        if region := self.settings.get("region"):
            settings[f"{bucket}.endpoint.region"] = region
        return settings


def read(
    lake: str,
    *,
    connection: str,
    conn_type: str,
    login: str | None,
    password: str | None,
    extra: Mapping[str, Any],
) -> LakeAccess:
    """The fields of an Airflow connection. Raises ConnectionInvalid if they do not fit the lake, or are not known."""
    scheme = urlsplit(lake).scheme
    fitting = TYPES.get(scheme)
    if fitting is None:
        raise ConnectionInvalid(connection=connection, reason=f"a lake at {lake} needs none")
    if conn_type not in fitting:
        reason = f"its type is {conn_type!r}; a lake on {scheme}:// needs {' or '.join(fitting)}"
        raise ConnectionInvalid(connection=connection, reason=reason)
    if scheme == "s3a":
        return _aws(connection, login, password, extra)
    if scheme == "gs":
        return _google(connection, extra)
    return _azure(connection, login, password, extra)


def _aws(connection: str, login: str | None, password: str | None, extra: Mapping[str, Any]) -> LakeAccess:
    _refuse(connection, extra, _UNKNOWN_OF_AWS, "let the machine assume the role, and give the connection no keys")
    if bool(login) != bool(password):
        raise ConnectionInvalid(
            connection=connection, reason="it has one of login and password; it needs both, or none"
        )
    style = (extra.get("config_kwargs") or {}).get("s3") or {}
    virtual = isinstance(style, Mapping) and style.get("addressing_style") == "virtual"
    settings = {
        "endpoint": extra.get("endpoint_url") or extra.get("host"),
        "region": extra.get("region_name"),
        "virtual_hosted_style_request": "true" if virtual else None,
    }
    secrets = {
        "access_key_id": login,
        "secret_access_key": password,
        "session_token": extra.get("aws_session_token") if login else None,
    }
    return LakeAccess(_given(settings), _given(secrets))


def _google(connection: str, extra: Mapping[str, Any]) -> LakeAccess:
    """Tried with a key in the connection, on Google's protocol, and not on its servers."""
    of = {name.removeprefix("extra__google_cloud_platform__"): value for name, value in extra.items()}
    _refuse(connection, of, _UNKNOWN_OF_GOOGLE, "let the machine be that account, and give the connection no key")
    key = of.get("keyfile_dict")
    if isinstance(key, Mapping):  # Airflow takes it both ways
        key = json.dumps(key)
    return LakeAccess(_given({"service_account": of.get("key_path")}), _given({"service_account_key": key}))


def _azure(connection: str, login: str | None, password: str | None, extra: Mapping[str, Any]) -> LakeAccess:
    """Tried with a key on an emulator; a client of a tenant was not tried."""
    of = {name.removeprefix("extra__wasb__"): value for name, value in extra.items()}
    tenant = of.get("tenant_id")
    settings = {"tenant_id": tenant, "client_id": login if tenant else None, "account_name": None if tenant else login}
    secrets = {
        "client_secret": password if tenant else None,
        "account_key": None if tenant else password,
        "sas_key": of.get("sas_token"),
    }
    return LakeAccess(_given(settings), _given(secrets))


def _refuse(connection: str, extra: Mapping[str, Any], unknown: Sequence[str], instead: str) -> None:
    for name in unknown:
        if extra.get(name):
            raise ConnectionInvalid(connection=connection, reason=f"{name} is not known here; {instead}")


def _given(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value}
