from __future__ import annotations

from told_runs import enter

from app.store.database import Store
from app.store.models import Artifact
from app.store.queries.artifacts import artifact_of, artifacts_of


def test_the_adapter_comes_first_and_then_the_newest_checkpoint(tmp_path):
    store = Store.open(str(tmp_path / "store.db"))
    run_id = enter(store, tmp_path)
    kinds = [
        ("config", None),
        ("checkpoint", 4),
        ("new", None),
        ("checkpoint", 8),
        ("adapter", None),
    ]
    with store.write() as session:
        for kind, update in kinds:
            session.add(
                Artifact(
                    run_id=run_id,
                    kind=kind,
                    path=f"/{kind}{update}",
                    size=1,
                    sha256="0",
                    created_at=1.0,
                    update=update,
                )
            )
    with store.read() as session:
        found = artifacts_of(session, run_id)
        assert [(one.kind, one.update) for one in found] == [
            ("adapter", None),
            ("checkpoint", 8),
            ("checkpoint", 4),
            ("config", None),
            ("new", None),
        ]
        assert artifact_of(session, run_id, found[0].id) == found[0]
        assert artifact_of(session, run_id + 1, found[0].id) is None
        assert artifact_of(session, run_id, 99) is None
    store.close()
