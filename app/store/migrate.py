"""Bringing a database to the present schema, by the revisions in ``migrations/``."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.resources import bundled
from app.store.database import engine_for
from app.store.errors import StoreError

# Any number will do, as long as every retrograd takes the same one.
_LOCK = 7_216_031_104


def migrate(url: str, shown: str, revision: str = "head") -> None:
    """Bring the database at ``url`` to ``revision``, in one transaction; ``shown`` names it in
    messages. Where several processes do so at once, the others wait and find it done.

    Raises StoreError for a database of a newer retrograd, DBAPIError, and OSError.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    wanted = scripts.get_current_head() if revision == "head" else revision
    # While a table is rebuilt, those that refer to it must not lose their rows.
    engine = engine_for(url, foreign_keys=False, pooled=False)
    try:
        with engine.connect() as connection:
            if _present(connection, known, shown) == wanted:
                return
        with engine.execution_options(retrograd_writing=True).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if _present(connection, known, shown) != wanted:
                config.attributes["connection"] = connection
                command.upgrade(config, revision)
    finally:
        engine.dispose()


def revisions() -> list[str]:
    """All revisions, from the first on."""
    scripts = ScriptDirectory.from_config(_config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(bundled("migrations")).replace("%", "%%"))
    return config


def _present(connection: Connection, known: set[str], shown: str) -> str | None:
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in known:
        raise StoreError(
            f"The store {shown} was written by a newer retrograd (its revision is {revision}). "
            "Update retrograd, or name another store with --store or RETROGRAD_STORE."
        )
    return revision
