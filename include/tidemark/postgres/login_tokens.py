"""Fetches the short-lived token that stands for a password: AWS (RDS, Aurora), Azure (Entra) and Google (Cloud SQL).

An Airflow connection asks for it by the extra `iam`. In a connection string the password's place then holds a recipe,
which has no secret; `postgres_session` exchanges it for a new token before each connect. A session that outlives its
token goes on, and whatever connects anew has a new one. The identity is that of the machine, as the provider's own
client finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidemark.errors import TokenClientMissing, TokenNotIssued

_RECIPE: Final = "tidemark-login-token:"
_AZURE_SCOPE: Final = "https://ossrdbms-aad.database.windows.net/.default"
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/sqlservice.login"

PROVIDERS: Final = ("aws", "azure", "google")
_CLIENTS: Final = {"aws": "botocore", "azure": "azure-identity", "google": "google-auth, requests"}


def provider_of(extra: Mapping[str, Any]) -> str | None:
    """The issuer of tokens for a connection; None if it has a password. `iam: true` is Airflow's own form for AWS,
    or for Azure with `azure_conn_id`. Raises ValueError for an unknown provider."""
    said = str(extra.get("iam") or "false").lower()
    if said == "false":
        return None
    if said == "true":
        return "azure" if extra.get("azure_conn_id") else "aws"
    if said not in PROVIDERS:
        raise ValueError(said)
    return said


def recipe(provider: str, region: str | None = None) -> str:
    """The text in place of the password."""
    return _RECIPE + json.dumps({"provider": provider, "region": region})


def is_recipe(password: str) -> bool:
    return password.startswith(_RECIPE)


def fetch(password: str, parameters: Mapping[str, Any]) -> str:
    """Fetch a new token by a recipe, for host, port and user of a connection. Raises TokenClientMissing or
    TokenNotIssued."""
    ingredients = json.loads(password.removeprefix(_RECIPE))
    provider = ingredients["provider"]
    try:
        token = FETCHERS[provider](parameters, ingredients["region"])
    except ImportError:
        raise TokenClientMissing(provider=provider, package=_CLIENTS[provider]) from None
    except Exception as refused:  # each client has its own errors; their texts may hold a part of a credential
        raise TokenNotIssued(provider=provider, kind=type(refused).__name__) from None
    return token


def _aws(parameters: Mapping[str, Any], region: str | None) -> str:
    """Sign a token on this machine with its AWS credentials; nothing is sent."""
    import botocore.session

    session = botocore.session.get_session()
    client = session.create_client("rds", region_name=region or _region_of(str(parameters["host"])))
    token = client.generate_db_auth_token(
        DBHostname=str(parameters["host"]), Port=int(parameters.get("port") or 5432), DBUsername=str(parameters["user"])
    )
    return str(token)


def _region_of(host: str) -> str | None:
    """The region in a host name such as `name.id.eu-west-1.rds.amazonaws.com`; otherwise the client uses the
    machine's."""
    labels = host.split(".")
    place = labels.index("rds") if "rds" in labels else 0
    return labels[place - 1] if place else None


def _azure(parameters: Mapping[str, Any], region: str | None) -> str:
    from azure.identity import DefaultAzureCredential

    return str(DefaultAzureCredential().get_token(_AZURE_SCOPE).token)


def _google(parameters: Mapping[str, Any], region: str | None) -> str:
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
    credentials.refresh(Request())
    return str(credentials.token)


FETCHERS: Final[dict[str, Callable[[Mapping[str, Any], str | None], str]]] = {
    "aws": _aws,
    "azure": _azure,
    "google": _google,
}
