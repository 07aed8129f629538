from __future__ import annotations

import csv
import json

from told_runs import whole_run

from app.store.export_answers import answers_csv, answers_jsonl
from app.store.queries.answers import Filters


def test_answers_are_those_of_a_group_an_update_or_the_run(store, tmp_path):
    run_id = whole_run(store, tmp_path, 3).run_id

    def told(filters=Filters(), **place):  # noqa: B008
        return [
            json.loads(line) for line in answers_jsonl(store, run_id, "train", filters, **place)
        ]

    assert [(a["update"], a["group"], a["member"]) for a in told(update=2, group=1)] == [
        (2, 1, member) for member in range(4)
    ]
    assert len(told(update=2)) == 2 * 4
    assert len(told()) == 3 * 2 * 4
    assert {a["reward"] for a in told(Filters(low=0.5))} == {0.5, 0.75}


def test_a_table_has_the_same_rows_and_nothing_is_held_between_them(store, tmp_path, monkeypatch):
    monkeypatch.setattr("app.store.queries.answers._CHUNK", 3)
    run_id = whole_run(store, tmp_path, 2).run_id
    lines = answers_csv(store, run_id, "train", Filters())
    first = [next(lines), next(lines)]
    assert store.engine.pool.checkedout() == 0, "a reader may be slow"
    rows = list(csv.DictReader([*first, *lines]))
    assert len(rows) == 2 * 2 * 4
    assert rows[0]["completion"].startswith("answer 1 0 0")
    assert json.loads(rows[0]["prompt"]) == [{"role": "user", "content": "Question number 0?"}]
