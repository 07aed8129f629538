from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from html import unescape

import pytest
from fastapi.testclient import TestClient
from hostile import Structure
from httpx import Response
from read_runs import answer, group, held_out, numbered, question, read_run, unlearned
from told_runs import groups, info, tell, whole_run

from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.web import create_app
from trainer.monitor import GroupRecord


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Store]:
    with closing(Store.open(str(tmp_path_factory.mktemp("reading") / "store.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(store) -> TestClient:
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory) -> int:
    told = [
        group(
            0,
            answer(0, "25", 1.0, advantage=0.46, parts={"format": 0.3, "correct": 0.7}),
            answer(1, "25", 1.0, advantage=0.46),
            answer(2, "18 + 7 equals 27.", 0.24, tokens=9, advantage=-0.3),
            unlearned(3, "To add these numbers", 0.2, "truncated", tokens=16, cut=True),
        ),
        group(
            1,
            answer(0, "Great question!", 0.5, audit=("sycophantic",), judge_term=0.2,
                   reward_raw=0.4, judge_words="Too eager."),
            unlearned(1, "", 0.0, "judge_dropped"),
        ),
        group(2, unlearned(0, "12", 0.7, "zero_signal"), unlearned(1, "12", 0.7, "zero_signal")),
    ]  # fmt: skip
    evaluations = {0: held_out("before"), 2: held_out("after", "and more")}
    folder = tmp_path_factory.mktemp("run")
    return read_run(store, folder, {1: groups(1), 2: told, 3: groups(3)}, evaluations=evaluations)


@pytest.fixture(scope="module")
def page(client, run) -> Callable[..., Response]:
    def get(query: str = "", run_id: int | None = None) -> Response:
        response = client.get(f"/runs/{run_id or run}/trajectories?{query}")
        assert response.status_code == 200, response.text
        return response

    return get


@pytest.fixture(scope="module")
def twin(client, run):
    def get(query: str = "", run_id: int | None = None) -> dict:
        response = client.get(f"/runs/{run_id or run}/trajectories.json?{query}")
        assert response.status_code == 200, response.text
        return response.json()

    return get


def words(response: Response) -> str:
    """What a reader sees, on one line."""
    body = response.text.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def articles(response: Response) -> list[str]:
    return [
        " ".join(unescape(re.sub(r"<[^>]+>", " ", part)).split())
        for part in re.findall(r"<article.*?</article>", response.text, re.DOTALL)
    ]


def links(response: Response, text: str) -> list[str]:
    found = re.findall(r'<a\s[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', response.text, re.DOTALL)
    return [
        unescape(address)
        for address, inside in found
        if text in " ".join(unescape(re.sub(r"<[^>]+>", " ", inside)).split())
    ]


def test_the_latest_update_is_open(page):
    assert "Update 3" in words(page())
    assert "Group 1 of 2" in words(page())


def test_answers_stand_by_reward_with_all_that_was_decided_about_them(page):
    first, second, third, fourth = articles(page("update=2"))
    assert first.startswith("reward 1.00 advantage +0.46 format 0.3 · correct 0.7 3 tokens")
    assert "duplicate" in second
    assert "advantage −0.30" in third
    assert "18 + 7 equals 27." in third
    assert "advantage —" in fourth
    assert "truncated · not trained 16 tokens" in fourth


def test_the_judge_and_the_audit_are_told(page):
    eager, dropped = articles(page("update=2&group=1"))
    assert "right 0.5 · judge +0.2 · penalty −0.1" in eager
    assert "sycophantic" in eager
    assert eager.endswith("Judge Too eager.")
    assert "judge dropped" in dropped
    assert "An empty answer." in dropped


def test_badges_say_what_they_mean(page):
    response = page("update=2&group=2")
    assert 'title="All rewards it is measured against are equal' in response.text
    assert "Audit: it opens with flattery." in words(response)  # in the list of badges


def test_the_list_tells_what_is_in_a_group(page):
    found = words(page("update=2"))
    assert "Question number 0? 0.20 to 1.00 · 3 of 4 trained 1 truncated" in found
    assert "Question number 2? 0.70 · 0 of 2 trained zero signal" in found


def test_groups_and_answers_are_sorted(twin):
    data = twin("update=2&sort=reward&by=length&group=0")
    assert [g["line"]["number"] for g in data["grouped"]["groups"]] == [2, 0, 1]
    assert [a["row"]["tokens"] for a in data["opened"]["answers"]] == [16, 9, 3, 3]
    assert (data["opened"]["earlier"], data["opened"]["later"]) == (2, 1)


def test_one_goes_from_update_to_update_and_from_group_to_group(page):
    text = page("update=2&group=1").text

    def address(number: str) -> str:
        tag = re.search(rf'<a [^>]*id="{number}"[^>]*>', text)
        return unescape(re.search(r'href="([^"]*)"', tag[0])[1]).partition("?")[2]

    assert address("earlier-update") == "update=1"
    assert address("later-update") == "update=3"
    assert address("earlier-group") == "update=2&group=0"
    assert address("later-group") == "update=2&group=2"
    assert not re.search(r'id="later-update"[^>]*href', page("update=3").text)


def test_a_column_of_the_strip_opens_its_update(page):
    assert links(page("update=2"), "update 1: mean")[0].endswith("?update=1")
    assert 'aria-label="update 2: mean 0.54, 0.00 to 1.00"' in page().text


def test_all_messages_of_a_prompt_are_there_with_their_roles(page, store, tmp_path):
    told = question(0, ("system", "Be brief."), ("user", "Sum?"), ("assistant", "Which?"),
                    ("user", "2 + 2" + " and then" * 500))  # fmt: skip
    other = read_run(store, tmp_path, {1: [GroupRecord(0, told, [answer(0, "4", 1.0)])]})
    found = words(page("", other))
    assert "system Be brief. user Sum? assistant Which? user 2 + 2 and then" in found
    assert "more characters" in found


def test_filters_list_the_answers_of_the_update_or_of_the_whole_run(page):
    found = page("update=2&min=0.5&trained=1")
    assert len(articles(found)) == 3
    assert "group 2 Question number 1?" in articles(found)[2]
    whole = page("update=2&min=0.7&scope=run")
    assert len(articles(whole)) == 8
    assert "update 2, group 1 Question number 0?" in articles(whole)[0]
    assert "No answer of this update fits." in words(page("update=1&audit=any"))
    assert links(page("update=1&audit=any"), "Look in the whole run")


def test_a_long_list_comes_in_pages(page, store, tmp_path):
    other = read_run(store, tmp_path, {u: groups(u, count=4, size=8) for u in (1, 2)})
    first = page("scope=run", other)
    assert len(articles(first)) == 50
    (more,) = links(first, "More answers")
    second = page(more.partition("?")[2].partition("#")[0], other)
    assert len(articles(second)) == 14
    assert not links(second, "More answers")


def test_groups_of_one_are_read_in_a_row_until_one_is_opened(page, store, tmp_path):
    other = read_run(store, tmp_path, {1: groups(1, count=5, size=1)}, algorithm="ppo")
    assert len(articles(page("", other))) == 5
    assert "Answers of update 1, by reward" in words(page("", other))
    assert len(articles(page("group=3", other))) == 1


def test_held_out_answers_are_apart(page):
    latest = page("kind=evaluation")
    assert "After update" in words(latest)
    assert len(articles(latest)) == 2
    assert "advantage" not in articles(latest)[0]
    assert "before" in articles(page("kind=evaluation&update=0"))[0]
    assert links(page(), "held-out") == [
        f"/runs/{latest.url.path.split('/')[2]}/trajectories?kind=evaluation"
    ]


def test_words_are_searched_and_marked(page):
    found = page("q=great+ques")
    assert "<mark>Great</mark> <mark>question</mark>!" in found.text
    (hit,) = links(found, "Great question !")
    assert re.search(r"trajectories\?update=2&group=1#answer-\d+$", hit)
    assert "last in update 3 Question number 0?" in words(page("q=question"))
    assert "has these words" in words(page('q=")(*"'))


def test_two_answers_stand_side_by_side_with_their_differences(page, store, run):
    ids = numbered(store, run)
    wrong, cut = ids["18 + 7 equals 27."], ids["To add these numbers"]
    marked = page(f"update=2&compare={wrong}")
    others = {address.partition("?")[2] for address in links(marked, "Compare with it")}
    assert f"update=2&compare={wrong}&with={cut}#detail" in others
    assert "is marked" in words(marked)
    both = page(f"update=2&compare={wrong}&with={cut}")
    assert '<mark class="only">18</mark>' in both.text
    assert '<mark class="only">To</mark>' in both.text
    assert "to the same prompt · 0 % of their words are the same" in words(both)
    assert len(articles(both)) == 2


def test_an_answer_that_is_not_there_cannot_be_compared(page, store, run):
    other = numbered(store, run)["25"]
    found = words(page(f"update=2&compare={other}&with=999999"))
    assert "is not in this run, or no longer counts" in found


def test_a_prompt_is_followed_over_time(page):
    found = page("update=2&group=0")
    assert "This prompt over time answered 3 times" in words(found)
    assert any(address.endswith("?update=1&group=0") for address in links(found, "1"))


def test_a_long_answer_is_whole_on_demand(page, store, tmp_path):
    text = "word " * 12_800
    other = read_run(store, tmp_path, {1: [group(0, answer(0, text, 1.0))]})
    folded = page("", other)
    assert "56,000 more characters. Show the whole text" in words(folded)
    (whole,) = links(folded, "Show the whole text")
    assert words(page(whole.partition("?")[2].partition("#")[0], other)).count("word") >= 12_800


def test_hostile_texts_are_shown_and_do_nothing(page, store, tmp_path):
    text = (
        "<img src=x onerror=alert(1)></div></article><script>alert(2)</script>{{ 7*7 }}{% raw %}"
        "\u202eright\x1b[31m\"'&lt;b&gt;"
    )
    told = GroupRecord(
        0,
        question(0, ("user", text)),
        [answer(0, text, 1.0, judge_words=text, parts={text: 1.0}), answer(1, text + "2", 0.0)],
    )
    other = read_run(store, tmp_path, {1: [told], 2: [told]}, name=text)
    ids = numbered(store, other)
    for query in (
        "update=1&group=0",
        "scope=run",
        "q=onerror",
        f"compare={min(ids.values())}&with={max(ids.values())}",
    ):
        found = page(query, other)
        structure = Structure(found.text)
        assert structure.faults == []
        assert "<img src=x onerror=" in structure.words, query
        main = found.text.partition('aria-label="Pages of this run"')[2]
        assert "\u202e" not in main
        assert "\x1b" not in main
        assert "U+202E" in main
        assert "{{ 7*7 }}" in structure.words


@pytest.mark.parametrize(
    ("status", "stage", "said"),
    [
        ("queued", None, "This run waits in the queue."),
        ("starting", ("generate", 3, 32), "Answers are being written (3 of 32)"),
        ("completed", None, "The run ended before it had any answers. Read its journal"),
    ],
)
def test_a_run_without_answers_says_what_it_does(page, store, tmp_path, status, stage, said):
    other = read_run(store, tmp_path, {}, end=False)
    with store.write() as session:
        row = session.get_one(Run, other)
        row.status = status
        row.stage, row.stage_done, row.stage_total = stage or ("", 0, 0)
    assert said in words(page("", other))


def test_a_supervised_run_says_where_its_numbers_are(page, store, tmp_path):
    other = read_run(store, tmp_path, {1: [], 2: []}, algorithm="sft")
    found = page("", other)
    assert "A supervised run learns from given answers" in words(found)
    assert links(found, "See its metrics") == [f"/runs/{other}/metrics"]
    assert 'id="tools"' not in found.text
    assert 'id="strip"' not in found.text


def test_held_out_answers_have_no_filters_of_training(page):
    for place in ("filter-trained", "menu-skip", "follow"):
        assert f'id="{place}"' in page().text
        assert f'id="{place}"' not in page("kind=evaluation").text
    filtered = page("trained=1&skip=truncated")
    (address, *_) = links(filtered, "held-out")
    assert "trained" not in address
    assert "skip" not in address


def test_a_span_of_rewards_that_ends_before_it_begins_is_said_to_be_one(page, run):
    found = page("update=2&min=0.9&max=0.1")
    assert "No reward is from 0.9 to 0.1" in words(found)
    assert links(found, "Swap them") == [f"/runs/{run}/trajectories?update=2&min=0.1&max=0.9"]


def test_texts_that_were_not_kept_are_said_to_be_so(page, store, tmp_path):
    observe = {"every": 2, "max_text_chars": 8}
    told = {u: groups(u, text="and more of it") for u in (1, 2)}
    other = read_run(store, tmp_path, told, observe=observe)
    assert "more characters were not kept ([observe] max_text_chars)" in words(
        page("update=1", other)
    )
    without = page("update=2", other)
    assert articles(without)[0].endswith("Its text was not kept ([observe] every).")
    assert "reward 0.75" in articles(without)[0]


def test_an_update_under_way_has_its_answers_and_says_so(page, store, tmp_path):
    other = read_run(store, tmp_path, {1: groups(1)}, begun=groups(2), end=False)
    with store.write() as session:
        session.get_one(Run, other).status = "running"
    found = page("", other)
    assert len(articles(found)) == 4
    assert "under way" in words(found)


def test_skipped_missing_and_superseded_updates_say_so(page, store, tmp_path):
    other = read_run(store, tmp_path, {1: groups(1), 2: groups(2)}, skipped=[2])
    assert "Update 2 was skipped" in words(page("update=2", other))
    assert "There is no update 9 in this run. Open update 2" in words(page("update=9", other))
    assert "Update 1 has no group 77" in words(page("update=1&group=77", other))

    first = whole_run(store, tmp_path, 5, end=False)
    again = StoreMonitor(store, first._run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.settle()
    again.abandon()
    assert "Update 5 was superseded: the run was resumed from update 3" in words(
        page("update=5", first._run_id)
    )


def test_following_shows_the_latest_whatever_the_address_says(page):
    assert "Update 3" in words(page("follow=1"))
    assert re.search(r'id="follow"[^>]*aria-current="true"', page("follow=1").text)
    assert "data-follow" in page("follow=1").text


def test_an_address_that_makes_no_sense_is_refused(client, run):
    refused = client.get(f"/runs/{run}/trajectories?min=much")
    assert refused.status_code == 400
    assert "min in the address: 'much' is no number." in unescape(refused.text)
    assert client.get("/runs/999/trajectories").status_code == 404
