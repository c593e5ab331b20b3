"""Defines the page's web application: static files, routes for data and for buttons, and the rights they need.

A mounted application has no authentication of its own, so every route asks for it: a route of a pipeline for the right
to read its capture DAG, one that acts for the right to trigger that DAG. Whoever lacks the first is told what somebody
is told who asks for a pipeline that does not exist. What acts is written into Airflow's audit log, beside that DAG,
before it is done.

Airflow's login is a cookie, so a page of another site could send a request with it. What acts takes JSON alone, and no
request that a browser says comes from elsewhere (`Sec-Fetch-Site`, `Origin`). Routes are plain functions, which FastAPI
runs in threads: they wait for databases.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as AnyHttpException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from tidemark.config import PipelineConfig
from tidemark.errors import TableUnknown, TidemarkError
from tidemark.observe.status_json import dags
from tidemark_airflow.page.page_queries import Reading, pipelines_folder
from tidemark_airflow.page.views import PREFIX

STATIC: Final = Path(__file__).parent / "static"
MAX_HOURS: Final = 90 * 24
# A frame of Airflow alone may show the page, and it loads and asks nothing from elsewhere.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

Action = Literal["unpark", "pause", "resume"]


class TableAction(BaseModel):
    """What an action is done to: a table by its id or as `schema.table`."""

    table: str = Field(min_length=1, max_length=1000)


def application() -> FastAPI:
    """The application for the pipelines that the DAGs are made of."""
    import psycopg

    answers = Reading(pipelines_folder())
    app = FastAPI(title="Tidemark", dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=1000)

    def pipeline(name: str, user: GetUserDep) -> PipelineConfig:
        config = answers.pipeline(name)
        if config is None or not _may(user, "GET", dags(name)["capture"]):
            raise HTTPException(404, "There is no such pipeline, or you may not read its DAG.")
        return config

    def pipeline_of_dag(dag_id: str) -> PipelineConfig:
        config = answers.pipeline(dag_id.removesuffix("_capture"))
        if config is None or dags(config.pipeline)["capture"] != dag_id:
            raise HTTPException(404, "There is no such pipeline.")
        return config

    Pipeline = Annotated[PipelineConfig, Depends(pipeline)]

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={**HEADERS, "Cache-Control": "no-cache"})

    @app.get("/api/pipelines")
    def pipelines(user: GetUserDep) -> dict[str, Any]:
        configs, problems = answers.pipelines()
        readable = [
            {"pipeline": config.pipeline, "dags": dags(config.pipeline)}
            for config in configs
            if _may(user, "GET", dags(config.pipeline)["capture"])
        ]
        # A problem quotes its file, which is of a pipeline that nobody's rights can be asked for.
        return {"pipelines": readable, "problems": problems if readable or not configs else []}

    @app.get("/api/pipelines/{name}")
    def status(config: Pipeline, user: GetUserDep) -> dict[str, Any]:
        own = dags(config.pipeline)
        may = {kind: _may(user, "POST", dag, run=True) for kind, dag in own.items()}
        may_unpause = {kind: _may(user, "PUT", dag) for kind, dag in own.items()}
        return {**answers.status(config), "may": may, "may_unpause": may_unpause}

    @app.get("/api/pipelines/{name}/overview")
    def overview(config: Pipeline) -> dict[str, Any]:
        return answers.overview(config)

    @app.get("/api/pipelines/{name}/figures")
    def figures(config: Pipeline, hours: Annotated[int, Query(ge=1, le=MAX_HOURS)] = 24) -> Any:
        return answers.figures(config, hours)

    @app.get("/api/pipelines/{name}/table")
    def table(config: Pipeline, table: Annotated[str, Query(min_length=1, max_length=1000)]) -> dict[str, Any]:
        details = answers.table(config, table)
        if details is None:
            raise HTTPException(404, "There is no such table.")
        return details

    def done(said: str, is_done: bool) -> dict[str, Any]:
        if not is_done:
            raise HTTPException(409, said)
        return {"said": said}

    def acting(name: str) -> list[Any]:
        return [
            Depends(of_this_site),
            Depends(requires_access_dag("POST", DagAccessEntity.RUN)),
            Depends(action_logging(event=f"tidemark_{name}")),
        ]

    def add_action(name: Action) -> None:
        def act(dag_id: str, wanted: TableAction, user: GetUserDep) -> dict[str, Any]:
            return done(*answers.act(pipeline_of_dag(dag_id), name, wanted.table, user.get_name()))

        app.post(f"/api/dags/{{dag_id}}/{name}", dependencies=acting(name))(act)

    for name in ("unpark", "pause", "resume"):
        add_action(name)

    @app.post("/api/dags/{dag_id}/changes", dependencies=acting("changes"))
    def changes(dag_id: str, wanted: TableAction) -> dict[str, Any]:
        """Values of rows: whoever may run the capture sees them, and the audit log has who did."""
        return {"changes": answers.changes(pipeline_of_dag(dag_id), wanted.table)}

    @app.post("/api/dags/{dag_id}/upgraded", dependencies=acting("upgraded"))
    def upgraded(dag_id: str, user: GetUserDep) -> dict[str, Any]:
        return done(*answers.continue_upgraded(pipeline_of_dag(dag_id), user.get_name()))

    @app.exception_handler(AnyHttpException)
    async def refused(request: Request, error: Exception) -> Response:
        """A browser that opens the page without a session, or with one that is over, is sent to Airflow's login."""
        assert isinstance(error, AnyHttpException)
        if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(_login(request), 302)
        return await http_exception_handler(request, error)

    @app.exception_handler(TidemarkError)
    def of_the_library(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404 if isinstance(error, TableUnknown) else 503)

    @app.exception_handler(psycopg.Error)
    def of_a_database(_: Request, error: Exception) -> JSONResponse:
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        return JSONResponse({"detail": f"The ledger cannot be asked: {type(error).__name__}, SQLSTATE {state}."}, 503)

    app.mount("/static", _Revalidated(directory=STATIC), name="static")
    return app


class _Revalidated(StaticFiles):
    """A browser asks whether it has the newest: scripts of two versions do not go together."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _login(request: Request) -> str:
    """Airflow's login, which leads back to the address that was asked for."""
    mounted_at = request.scope.get("root_path", "")
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"{mounted_at.removesuffix(PREFIX)}/api/v2/auth/login?{urlencode({'next': asked})}"


def of_this_site(request: Request) -> None:
    """Refuse what a page of another site may have sent with the user's cookie. A client with a token of its own, which
    no browser adds by itself, says neither header."""
    if not request.headers.get("content-type", "").lower().startswith("application/json"):
        raise HTTPException(415, "Send JSON.")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site != "same-origin":
        raise HTTPException(403, "The request comes from another site.")
    if site is None and origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "The request comes from another site.")


def _may(user: Any, method: Literal["GET", "POST", "PUT"], dag_id: str, *, run: bool = False) -> bool:
    """Whether the user has this right to the DAG, or to its runs."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    entity = DagAccessEntity.RUN if run else None
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))
