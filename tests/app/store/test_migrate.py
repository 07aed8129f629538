from __future__ import annotations

from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Table, create_engine, inspect, select, text
from told_runs import the_run, whole_run

from app.store.database import Store, engine_for
from app.store.migrate import migrate, revisions
from app.store.models import Answer, Base, Run
from app.store.search import matches

NOT_TABLES = ("answers_fts", "prompts_fts")
BY_SERVER = ("answers_by_words", "prompts_by_words")


def is_ours(thing, name, kind, reflected, compare_to):
    """Whether ``models.py`` is to know of it: the full-text index is the revisions' own."""
    return not (name or "").startswith(NOT_TABLES + BY_SERVER)


def test_the_models_are_what_the_revisions_make(store):
    options = {"include_object": is_ours, "compare_type": True}
    with store.engine.connect() as connection:
        found = compare_metadata(
            MigrationContext.configure(connection, opts=options), Base.metadata
        )
    assert found == []


def test_what_the_comparison_finds_is_missed(file_store):
    """So the test above can fail."""
    with file_store.write() as session:
        session.execute(text("ALTER TABLE runs ADD COLUMN extra INTEGER"))
    with file_store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": is_ours})
        assert [change[0] for change in compare_metadata(context, Base.metadata)] == [
            "remove_column"
        ]


def test_there_is_one_line_of_revisions():
    assert revisions()[0] == "0001"
    assert len(revisions()) == len(set(revisions()))


def fill(url: str) -> list[Table]:
    """Two rows of each table that there is, as any revision of it takes them; the tables. The
    store's identity is not one to be filled: it has its row from its revision."""
    engine = engine_for(url)
    with engine.begin() as connection:
        present = inspect(connection)
        names = {*present.get_table_names()} - {"identity"}
        order = [table for table in Base.metadata.sorted_tables if table.name in names]
        for table in order:
            columns = {column["name"]: column for column in present.get_columns(table.name)}
            for number in (1, 2):
                row = {
                    name: value_for(name, str(column["type"]), number)
                    for name, column in columns.items()
                    if name != "id"
                }
                names = ", ".join(f'"{name}"' for name in row)
                places = ", ".join(f":{name}" for name in row)
                connection.execute(
                    text(f"INSERT INTO {table.name} ({names}) VALUES ({places})"), row
                )
    engine.dispose()
    return order


def value_for(name: str, kind: str, number: int) -> object:
    if name.endswith("_id") and name != "segment_id":
        return number
    if kind.startswith("JSON"):
        return "{}" if name in ("params", "facts", "provenance", "parts", "data") else "[]"
    if kind == "TEXT":
        return f"{name} {number}"
    return number % 2 == 0 if kind == "BOOLEAN" else number


@pytest.mark.parametrize("revision", revisions())
def test_a_store_with_data_in_it_comes_along_from_every_revision(url, tmp_path, revision):
    migrate(url, url, revision)
    tables = fill(url)
    with closing(Store.open(url)) as store:
        with store.read() as session:
            for table in tables:
                assert len(session.execute(select(table)).all()) == 2, table.name
            found = session.scalars(select(Answer.id).where(matches(session, Answer, '"text 2"')))
            assert found.all() == [2]
        assert store.identity
        monitor = whole_run(store, tmp_path, 2)
        assert the_run(store, monitor.run_id).completed == 2


@pytest.mark.parametrize("revision", [r for r in revisions() if r < "0003"])
def test_a_run_of_before_runs_had_names_has_none(url, revision):
    migrate(url, url, revision)
    fill(url)
    with closing(Store.open(url)) as store, store.read() as session:
        assert session.scalars(select(Run.uuid).order_by(Run.id)).all() == ["", ""]


@pytest.mark.parametrize("revision", [r for r in revisions() if r < "0004"])
def test_the_time_in_which_a_run_of_before_lay_still_is_added_up(url, revision):
    migrate(url, url, revision)
    fill(url)
    engine = engine_for(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE segments SET run_id = 1, ended_at = 150, started_at = 100"))
        connection.execute(
            text("UPDATE segments SET number = 2, started_at = 400, ended_at = NULL WHERE id = 2")
        )
    engine.dispose()
    with closing(Store.open(url)) as store, store.read() as session:
        assert session.scalars(select(Run.idle_seconds).order_by(Run.id)).all() == [250.0, 0.0]


def test_opening_a_store_that_is_up_to_date_waits_for_no_writer(file_store, tmp_path):
    with file_store.write() as session:
        session.execute(text("UPDATE runs SET planned = 1"))
        Store.open(str(tmp_path / "store.db")).close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "store.db"
    monkeypatch.setattr("alembic.op.create_index", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Store.open(str(path))
    engine = create_engine(f"sqlite:///{path}")
    assert inspect(engine).get_table_names() == []
    engine.dispose()
    monkeypatch.undo()
    monkeypatch.setenv("RETROGRAD_STORE", str(path))
    with closing(Store.open()) as store:
        whole_run(store, tmp_path, 1)


def test_a_run_is_told_into_the_newest_schema(store, tmp_path):
    monitor = whole_run(store, tmp_path, 1)
    assert the_run(store, monitor.run_id).lost == 0
