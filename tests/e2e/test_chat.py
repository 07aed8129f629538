"""A person talks to a run's adapter, and leaves nothing running behind."""

from __future__ import annotations

import re
from contextlib import closing

import psutil
import pytest
from playwright.sync_api import expect
from talking import enter_talker

from e2e.server import Server
from e2e.waiting import eventually

QUESTION = "Add 2 and 3."


@pytest.fixture(scope="module")
def endless_talker(server, random_llama, tmp_path_factory) -> int:
    """A run of a model that, asked for the likeliest token, goes on and on."""
    model = random_llama(context=60_000)
    with closing(server.store()) as store:
        return enter_talker(store, tmp_path_factory.mktemp("endless"), model, ctx=50_000)


def answering(server: Server) -> list[psutil.Process]:
    return [p for p in server.workers() if "app.chat.worker" in command_of(p)]


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended since it was listed


def ask(page, words, **controls):
    for label, value in controls.items():
        page.get_by_label(label).fill(value)
    page.get_by_label("Message", exact=True).fill(words)
    page.keyboard.press("Enter")


def column(page, voice, exchange=-1):
    return page.locator(".exchange").nth(exchange).locator(f".voice.{voice}")


def endless(page, run_id):
    page.goto(f"/chat?run={run_id}")
    ask(page, "hello", temperature="0", **{"at most": "4096"})
    expect(column(page, "base").locator(".words")).to_have_text(re.compile(".{30}", re.DOTALL))


def test_base_and_adapter_answer_side_by_side_by_keyboard_alone(server, tab, finished_run):
    watch = tab(server)
    page = watch.page
    page.goto(f"/runs/{finished_run}")
    page.get_by_role("link", name="Chat with it").first.click()
    ask(page, QUESTION, seed="5")
    for voice in ("base", "adapter"):
        expect(column(page, voice).locator(".words")).to_have_text(re.compile(r"\S"))
    expect(page.get_by_role("status").last).to_contain_text(re.compile("Base: .*With the adapter:"))
    expect(page.get_by_label("seed")).to_have_value("6")
    expect(page.get_by_label("Message", exact=True)).to_be_empty()
    first = [column(page, v).inner_text() for v in ("base", "adapter")]

    ask(page, "And 1?")
    expect(page.locator(".exchange")).to_have_count(2)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.reload()
    expect(page.locator(".exchange")).to_have_count(2)
    assert [column(page, v, 0).inner_text() for v in ("base", "adapter")] == first
    watch.assert_clean()


def test_an_answer_is_stopped_and_the_conversation_goes_on(server, tab, endless_talker):
    watch = tab(server)
    page = watch.page
    endless(page, endless_talker)
    page.get_by_role("button", name="Stop").click()
    expect(column(page, "base").locator(".after")).to_have_text("stopped")
    expect(column(page, "adapter").locator(".after")).to_have_text("stopped")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    ask(page, "again", **{"at most": "8"})
    expect(column(page, "adapter", 1).locator(".after")).to_contain_text("cut off after 8 tokens")
    watch.assert_clean()


def test_there_is_nothing_to_stop_before_the_message_has_arrived(server, tab, finished_run):
    page = tab(server).page
    page.goto(f"/chat?run={finished_run}")
    held = []
    page.route("**/chat", lambda route: held.append(route))
    ask(page, QUESTION)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    eventually(lambda: held or page.wait_for_timeout(20), "the message on its way")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    held[0].continue_()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(column(page, "adapter").locator(".words")).to_have_text(re.compile(r"\S"))


def test_a_server_that_does_not_take_the_stop_is_told(server, tab, endless_talker):
    page = tab(server).page
    endless(page, endless_talker)
    page.route("**/stop", lambda route: route.abort())
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").last).to_have_text("The server does not answer.")


def test_a_page_that_is_closed_takes_its_process_along(server, tab, endless_talker):
    page = tab(server).page
    endless(page, endless_talker)
    assert answering(server)
    page.close()
    eventually(lambda: not answering(server), "the end of the process that answers")


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_server_that_ends_takes_it_along(own_server, tab, random_llama, tmp_path, end):
    with closing(own_server.store()) as store:
        model = random_llama(context=60_000)
        run_id = enter_talker(store, tmp_path / "run", model, ctx=50_000)
    endless(tab(own_server).page, run_id)
    (process,) = answering(own_server)
    own_server.kill() if end == "kill" else own_server.interrupt()
    eventually(lambda: not process.is_running(), "the end of the process that answers")


def test_two_pages_wait_for_each_other(server, tab, endless_talker, finished_run):
    first, second = tab(server).page, tab(server).page
    endless(first, endless_talker)
    second.goto(f"/chat?run={finished_run}")
    ask(second, QUESTION)
    expect(second.get_by_role("status").last).to_have_text(
        "Waiting: 1 other message is answered first."
    )
    first.get_by_role("button", name="Stop").click()
    expect(column(second, "adapter").locator(".words")).to_have_text(re.compile(r"\S"))


def test_without_scripts_the_page_comes_back_with_both_answers(server, tab, finished_run):
    page = tab(server, java_script_enabled=False).page
    page.goto(f"/chat?run={finished_run}")
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.get_by_role("button", name="Send").click()
    page.wait_for_url("**/chat?chat=*")
    for voice in ("base", "adapter"):
        expect(column(page, voice).locator(".words")).to_have_text(re.compile(r"\S"))
    expect(page.get_by_text("Without scripts")).to_be_visible()


def test_the_form_of_a_stranger_is_refused(server, tab, finished_run):
    page = tab(server).page
    page.set_content(
        f'<form method="post" action="{server.url}/chat"><input name="message" value="x">'
        f'<input name="run" value="{finished_run}"><button>Go</button></form>'
    )
    with page.expect_response("**/chat") as answer:
        page.get_by_role("button").click()
    assert answer.value.status == 403


def test_a_message_that_failed_is_in_the_box_again_and_choosing_another_run_goes_to_it(
    server, tab, finished_run, endless_talker
):
    watch = tab(server)
    page = watch.page
    page.goto(f"/chat?run={finished_run}")
    words = "7 " * 600
    ask(page, words)
    expect(column(page, "adapter").locator(".after")).to_contain_text("shorten it. A run with")
    expect(page.get_by_label("Message", exact=True)).to_have_value(words)
    page.locator("#run").select_option(str(endless_talker))
    page.wait_for_url(f"**/chat?run={endless_talker}")
    expect(page.locator(".exchange")).to_have_count(0)
    watch.assert_clean()
