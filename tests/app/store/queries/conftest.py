from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from app.store.database import Store


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_store(request, tmp_path_factory) -> Iterator[Store]:
    """One for all tests of a file, which look at runs of their own."""
    url = str(tmp_path_factory.mktemp("shared") / "store.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    with closing(Store.open(url)) as opened:
        yield opened
