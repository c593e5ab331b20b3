"""Mounts the page in Airflow: an application below `/tidemark`, an entry of the navigation, a tab of each DAG.

Every process of Airflow loads plugins, a task's too, and FastAPI alone would cost each of them half a second. So what
is mounted here is a callable that makes the application when the first request comes. Source: Airflow documentation,
"Plugins" (`fastapi_apps`, `external_views`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

PREFIX: Final = "/tidemark"

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class LazyApplication:
    """The application of `page.app`, made at its first request."""

    @cached_property
    def _application(self) -> Callable[[_Message, _Receive, _Send], Awaitable[None]]:
        from tidemark_airflow.page.app import application

        return application()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        await self._application(scope, receive, send)


def applications() -> list[dict[str, Any]]:
    return [{"app": LazyApplication(), "url_prefix": PREFIX, "name": "Tidemark"}]


def external_views(base_url: str) -> list[dict[str, Any]]:
    """Airflow shows them in a frame of its own; a tab stands on every DAG, and says so where that is none of ours."""
    root = f"{urlsplit(base_url).path.rstrip('/')}{PREFIX}"
    drawn = {"icon": f"{root}/static/icon.svg", "icon_dark_mode": f"{root}/static/icon-dark.svg"}
    return [
        {
            "name": "Tidemark",
            "href": f"{root}/",
            "destination": "nav",
            "url_route": "tidemark",
            "nav_top_level": True,
            **drawn,
        },
        {
            "name": "Tidemark",
            "href": f"{root}/?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": "tidemark-pipeline",
            **drawn,
        },
    ]
