from __future__ import annotations

import pytest
from sqlalchemy import func, select
from told_runs import info, outcome, tell, whole_run

from app.store.models import Answer, Group, Metric, Update
from app.store.monitor import StoreMonitor
from app.store.visible import visible, visible_in


@pytest.mark.parametrize("model", [Metric, Update, Group, Answer])
def test_both_conditions_show_the_same_rows(store, tmp_path, model):
    other = whole_run(store, tmp_path, 2).run_id
    run_id = whole_run(store, tmp_path, 6, end=False).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=4))
    tell(again, 5)
    again.run_finished(outcome(5))
    with store.read() as session:
        everywhere = session.scalars(select(model.id).where(visible(model))).all()
        each = [
            number
            for run in (other, run_id)
            for number in session.scalars(select(model.id).where(visible_in(session, run, model)))
        ]
        assert sorted(everywhere) == sorted(each)
        hidden = select(func.count()).where(model.run_id == run_id, ~visible(model))
        rows = {Metric: 14, Update: 2, Group: 4, Answer: 16}[model]
        assert session.scalar(hidden) == rows, "updates 5 and 6 of the first attempt"


def test_a_run_without_rows_has_none(store):
    with store.read() as session:
        assert session.scalars(select(Metric).where(visible_in(session, 5, Metric))).all() == []
