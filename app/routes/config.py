"""What a run was told to do, with what, and where another run was told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from app.jobs.differences import Difference, differences
from app.routes.config_values import Table, tables_of, unused
from app.routes.run_header import RunPage, find_run, header_of
from app.server.downloads import attachment
from app.server.pages import StoreDep, WholeNumber, page
from app.store.models import Run
from app.store.queries.compare import Choice, choices
from app.text import neutralise

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Other:
    """The run that this one is held against, with what differs: in the configuration, and in what
    the run was made of (versions, the base model, the prompts)."""

    id: int
    name: str
    settings: list[Difference]
    setup: list[Difference]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPage(RunPage):
    """``text`` is the TOML file, with its control and direction characters made visible; the
    download has it as it was."""

    tables: list[Table]
    unused: list[str]
    text: str
    config_path: str
    facts: dict[str, str]
    provenance: dict[str, str]
    other: Other | None
    choices: list[Choice]


@page(router, "/runs/{run_id:id}/config", "config/page.html")
def config(run_id: int, store: StoreDep, against: WholeNumber | None = None) -> ConfigPage:
    with store.read() as session:
        run = find_run(session, run_id)
        return ConfigPage(
            title=f"Config of {run.name}",
            run=header_of(run),
            tab="config",
            tables=tables_of(run.algorithm, run.params),
            unused=unused(run.algorithm, run.params) if run.params else [],
            text=neutralise(run.config_text, keep_newlines=True),
            config_path=run.config_path,
            facts=dict(run.facts),
            provenance=dict(run.provenance),
            other=None if against is None else _other(run, find_run(session, against)),
            choices=[choice for choice in choices(session) if choice.id != run_id],
        )


@router.get("/runs/{run_id:id}/config.toml")
def config_file(run_id: int, store: StoreDep) -> Response:
    """The file as it was when the run started."""
    with store.read() as session:
        run = find_run(session, run_id)
    if not run.config_text:
        raise HTTPException(404, "The text of this run's configuration was not stored.")
    return Response(
        run.config_text,
        media_type="application/toml",
        headers=attachment(f"{run.name}.toml", f"run-{run_id}.toml"),
    )


def _other(run: Run, other: Run) -> Other:
    return Other(
        id=other.id,
        name=other.name,
        settings=differences([(each.algorithm, each.params) for each in (run, other)]),
        setup=differences([("", _setup(each)) for each in (run, other)]),
    )


def _setup(run: Run) -> dict[str, str]:
    """Without what every run has for itself."""
    made_of = {**run.facts, **run.provenance}
    return {key: value for key, value in made_of.items() if key not in ("command", "resumed")}
