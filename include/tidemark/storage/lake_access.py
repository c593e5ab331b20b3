"""Derives credentials and settings for clients and Spark from the Airflow connection of the lake's object store.

Secrets are separate from settings and never printed. They go to a client in this process, and to a Spark driver by its
environment (R10). Without a connection, or without keys in it, clients and S3A use the machine's own identity: an
instance profile, a web identity, a container's role.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
_UNKNOWN_OF_AZURE: Final = ("connection_string", "client_secret_auth_config")

# Names of secrets -> names of the variables that S3A's own clients read.
_OF_S3A: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
# Of these there is one. Hadoop's client for Azure takes a secret from its settings alone, so a setting names the
# variable that has it.
_OF_AZURE: Final = ("client_secret", "account_key", "sas_key")
AZURE_SECRET: Final = "TIDEMARK_LAKE_SECRET"
_AZURE_TOKENS: Final = "org.apache.hadoop.fs.azurebfs.oauth2"
# The variable of Google's own clients.
GOOGLE_KEY_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


@dataclass(frozen=True, slots=True)
class LakeAccess:
    """`settings` and `secrets` under obstore's names; `repr` hides the secrets."""

    settings: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the credentials only work on this machine: the machine's own key, or the path of a key."""
        return bool(self.secrets) or "service_account" in self.settings

    def driver_environment(self, folder: Path) -> dict[str, str]:
        """Environment variables with the secrets, for a driver. The driver passes those of S3A and Azure to its
        executors, encrypted if `spark.network.crypto.enabled` or TLS is on.

        Google's clients only take a key from a file. It is written into `folder`, which belongs to the caller alone.
        The caller removes it when the driver has ended.
        """
        variables = {_OF_S3A[name]: value for name, value in self.secrets.items() if name in _OF_S3A}
        for name in _OF_AZURE:
            if name in self.secrets:
                variables.setdefault(AZURE_SECRET, self.secrets[name])
        if key := self.secrets.get("service_account_key"):
            file = folder / "lake-key.json"
            file.touch(mode=0o600)
            file.write_text(key)
            variables[GOOGLE_KEY_FILE] = str(file)
        elif "service_account" in self.settings:
            variables[GOOGLE_KEY_FILE] = self.settings["service_account"]
        return variables

    def spark_settings(self, lake: str) -> dict[str, str]:
        """Spark settings of the store without secrets: they appear in a command line."""
        uri = urlsplit(lake)
        of_hadoop = {"s3a": self._of_s3a, "gs": self._of_google, "abfss": self._of_azure}.get(uri.scheme)
        return {} if of_hadoop is None else of_hadoop(uri.netloc)

    def _of_s3a(self, bucket: str) -> dict[str, str]:
        prefix = f"spark.hadoop.fs.s3a.bucket.{bucket}"
        settings = {}
        if endpoint := self.settings.get("endpoint"):
            settings[f"{prefix}.endpoint"] = endpoint
            settings[f"{prefix}.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
            if self.settings.get("virtual_hosted_style_request") != "true":
                settings[f"{prefix}.path.style.access"] = "true"
        if checksum := self.settings.get("checksum_algorithm"):
            settings[f"{prefix}.create.checksum.algorithm"] = checksum
        if region := self.settings.get("region"):
            settings[f"{prefix}.endpoint.region"] = region
        return settings

    def _of_google(self, bucket: str) -> dict[str, str]:
        """The key that GOOGLE_KEY_FILE names; on executors without that variable, the machine's own identity.
        Without a key the site's configuration applies."""
        return {"spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT"} if self.is_of_this_machine else {}

    def _of_azure(self, container_and_account: str) -> dict[str, str]:
        """Hadoop resolves `${env.NAME}` when it reads the setting. Without a key or an identity the site's
        configuration applies: the client does not use the machine's identity by itself."""
        account = container_and_account.rpartition("@")[2]
        return {f"spark.hadoop.fs.azure.{name}.{account}": value for name, value in self._of_azures_account().items()}

    def _of_azures_account(self) -> dict[str, str]:
        secret, tenant = f"${{env.{AZURE_SECRET}}}", self.settings.get("tenant_id", "")
        if "client_secret" in self.secrets:
            issuer = f"https://login.microsoftonline.com/{tenant}/oauth2/token"
            by_secret = {"account.oauth2.client.endpoint": issuer, "account.oauth2.client.secret": secret}
            return {**self._by_token("ClientCreds"), **by_secret}
        if "account_key" in self.secrets:
            return {"account.auth.type": "SharedKey", "account.key": secret}
        if "sas_key" in self.secrets:
            return {"account.auth.type": "SAS", "sas.fixed.token": secret}
        if tenant:
            return {**self._by_token("WorkloadIdentity"), "account.oauth2.msi.tenant": tenant}
        return self._by_token("Msi") if "client_id" in self.settings else {}

    def _by_token(self, provider: str) -> dict[str, str]:
        return {
            "account.auth.type": "OAuth",
            "account.oauth.provider.type": f"{_AZURE_TOKENS}.{provider}TokenProvider",
            "account.oauth2.client.id": self.settings["client_id"],
        }


def read(
    lake: str,
    *,
    connection: str,
    conn_type: str,
    login: str | None,
    password: str | None,
    extra: Mapping[str, Any],
) -> LakeAccess:
    """The access from the fields of an Airflow connection. Raises ConnectionInvalid if they are unknown or do not
    fit the lake."""
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
    return _azure(connection, conn_type, login, password, extra)


def _aws(connection: str, login: str | None, password: str | None, extra: Mapping[str, Any]) -> LakeAccess:
    _refuse(connection, extra, _UNKNOWN_OF_AWS, "let the machine assume the role, and give the connection no keys")
    if bool(login) != bool(password):
        raise ConnectionInvalid(
            connection=connection, reason="it has one of login and password; it needs both, or none"
        )
    of_client = extra.get("config_kwargs") or {}  # botocore's names
    style = of_client.get("s3") or {}
    virtual = isinstance(style, Mapping) and style.get("addressing_style") == "virtual"
    checked = of_client.get("request_checksum_calculation") == "when_supported"
    settings = {
        "endpoint": extra.get("endpoint_url") or extra.get("host"),
        "region": extra.get("region_name"),
        "virtual_hosted_style_request": "true" if virtual else None,
        # What is put is hashed for its signature anyway; a bucket with object lock takes nothing without.
        "checksum_algorithm": "SHA256" if checked else None,
    }
    secrets = {
        "access_key_id": login,
        "secret_access_key": password,
        "session_token": extra.get("aws_session_token") if login else None,
    }
    return LakeAccess(_given(settings), _given(secrets))


def _google(connection: str, extra: Mapping[str, Any]) -> LakeAccess:
    """Tested with a key in the connection against Google's protocol, but not against Google's servers."""
    of = {name.removeprefix("extra__google_cloud_platform__"): value for name, value in extra.items()}
    _refuse(connection, of, _UNKNOWN_OF_GOOGLE, "let the machine be that account, and give the connection no key")
    key = of.get("keyfile_dict")
    if isinstance(key, Mapping):  # Airflow takes it both ways
        key = json.dumps(key)
    return LakeAccess(_given({"service_account": of.get("key_path")}), _given({"service_account_key": key}))


def _azure(
    connection: str, conn_type: str, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> LakeAccess:
    """The one secret that Airflow's own hook would use. The account is part of the lake's address. Tested on an
    emulator with a key and with a signature. Not tested: tokens of a tenant's client or of a machine."""
    of = {name.removeprefix(f"extra__{conn_type}__"): value for name, value in extra.items()}
    _refuse(connection, of, _UNKNOWN_OF_AZURE, "give it the account's key, a signature, or a client of a tenant")
    if tenant := of.get("tenant_id") or of.get("tenant"):
        if not (login and password):
            raise ConnectionInvalid(
                connection=connection, reason="it has a tenant; it needs a client's id as login, its secret as password"
            )
        return LakeAccess(_given({"tenant_id": tenant, "client_id": login}), _given({"client_secret": password}))
    signature = str(of.get("sas_token") or "").rpartition("?")[2]  # it may be an address that is signed
    if key := of.get("shared_access_key"):
        return LakeAccess(secrets=_given({"account_key": key}))
    if signature:
        return LakeAccess(secrets={"sas_key": signature})
    if key := password or of.get("account_key"):
        return LakeAccess(secrets=_given({"account_key": key}))
    identity, tenant = of.get("managed_identity_client_id"), of.get("workload_identity_tenant_id")
    if tenant and not identity:
        reason = "workload_identity_tenant_id needs the identity's managed_identity_client_id"
        raise ConnectionInvalid(connection=connection, reason=reason)
    return LakeAccess(_given({"client_id": identity, "tenant_id": tenant}))


def _refuse(connection: str, extra: Mapping[str, Any], unknown: Sequence[str], instead: str) -> None:
    for name in unknown:
        if extra.get(name):
            raise ConnectionInvalid(connection=connection, reason=f"{name} is not known here; {instead}")


def _given(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value}
