"""Whatever a model, a judge or a name says is shown as it is, and never run."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from e2e.pages import MISSING, PAGES, address, open_everything, settle, visit
from e2e.runs import write_run
from e2e.steps import check
from e2e.told_runs import HOSTILE
from e2e.watched_page import FOREIGN


@pytest.mark.parametrize("page", PAGES)
def test_nothing_hostile_runs_on(page, server, tab, hostile_run, finished_run):
    watch = tab(server)
    visit(watch.page, address(server, page, hostile_run, finished_run))
    open_everything(watch.page)
    watch.assert_clean()


def test_the_words_are_there_as_they_were_written(server, tab, hostile_run):
    watch = tab(server)
    visit(watch.page, f"/runs/{hostile_run}/trajectories?update=1")
    expect(watch.page.get_by_role("main")).to_contain_text(HOSTILE)
    expect(watch.page.get_by_role("heading", level=1)).to_have_text(f"run {HOSTILE}")
    visit(watch.page, f"/runs/{hostile_run}/journal")
    expect(watch.page.get_by_role("main")).to_contain_text(f"event {HOSTILE}")
    watch.assert_clean()


def test_the_list_that_changes_under_the_reader_stays_harmless(server, tab, hostile_run):
    """What scripts put into the page is text as well."""
    watch = tab(server)
    visit(watch.page, "/")
    watch.page.evaluate(
        """(id) => ["run", "runs", "metrics", "trajectories", "events", "artifacts"].forEach(
          (kind) => document.body.dispatchEvent(
            new CustomEvent(`hint:${kind}`, { detail: { kind, last_id: id } })))""",
        hostile_run,
    )
    settle(watch.page)
    expect(watch.page.get_by_role("main")).to_contain_text("<script>")
    watch.assert_clean()


def test_a_hostile_address_is_shown_and_not_run(server, tab, hostile_run):
    watch = tab(server)
    for where in (
        f"/runs/{hostile_run}/trajectories?q=<script>{FOREIGN}</script>",
        f'/?q="><img src=x onerror={FOREIGN}>',
        f"/runs/{hostile_run}/metrics?filter=<img src=x onerror={FOREIGN}>",
    ):
        visit(watch.page, where)
        watch.assert_clean()
    watch.page.goto(f"{MISSING}?<script>{FOREIGN}</script>")
    assert not watch.ran_foreign_script()
    assert watch.refusals() == []


def test_a_hostile_configuration_and_file_name_are_shown_and_not_run(server, tab, tmp_path):
    files = write_run(tmp_path / "run", {"run.name": f"<img src=x onerror={FOREIGN}>"})
    files.config.write_text(f"# {HOSTILE}\n{files.config.read_text()}")
    extra = tmp_path / "run" / f"<img src=x onerror={FOREIGN}>.jsonl"
    extra.write_text("{}\n")
    watch = tab(server)
    check(watch.page, [*files.dropped, extra])
    expect(watch.page.get_by_role("main")).to_contain_text(f"onerror={FOREIGN}>")
    open_everything(watch.page)
    assert not watch.ran_foreign_script()
    assert watch.refusals() == []
    assert not [trouble for trouble in watch.troubles if "dialog" in trouble]
