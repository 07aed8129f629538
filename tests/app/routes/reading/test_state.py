from __future__ import annotations

import pytest
from fastapi import HTTPException
from starlette.requests import Request

from app.routes.reading.state import State, state_of


def read(query: str) -> State:
    return state_of(7, Request({"type": "http", "query_string": query.encode(), "headers": []}))


def test_nothing_said_is_the_latest_update():
    assert read("") == State(7)
    assert State(7).url() == "/runs/7/trajectories"


def test_an_address_says_all_and_comes_back_as_it_was():
    state = State(
        7, update=3, group=1, kind="evaluation", sort="spread", by="length", low=-0.5, high=2.0,
        trained=True, truncated=True, skip="truncated", audit="any", scope="run", since=100,
        after="0.5_9", q='a "b" &c', before=8, marked=4, against=5, full=6,
    )  # fmt: skip
    path, _, query = state.url(full=6).partition("?")
    assert path == "/runs/7/trajectories"
    assert read(query) == state


def test_who_follows_names_no_update():
    assert State(7, update=3, follow=True).url() == "/runs/7/trajectories?follow=1"
    assert State(7, update=3, follow=True).url(group=1) == "/runs/7/trajectories?update=3&group=1"
    assert read("follow=1") == State(7, follow=True)


def test_an_empty_field_of_a_form_is_none():
    assert read("min=&max=&q=&update=") == State(7)
    assert read("min=0&max= 1 ") == State(7, low=0.0, high=1.0)


@pytest.mark.parametrize(
    "query",
    ["update=x", "update=-1", "update=1.5", "update=99999999999999999999", "update=²", "group=%00",
     "min=nan", "max=inf", "min=a", "kind=other", "sort=name", "by=x", "skip=evaluation",
     "audit=x", "scope=all", "after=1", "after=nan_1", "compare=x", "follow=yes", "trained=maybe"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(query):
    with pytest.raises(HTTPException) as refused:
        read(query)
    assert refused.value.status_code == 400
    assert refused.value.detail.startswith(f"{query.partition('=')[0]} in the address")


def test_another_update_closes_the_group_and_keeps_filters_and_mark():
    state = State(7, update=3, group=1, low=0.5, marked=9, sort="spread", follow=True)
    assert read(state.url(update=4).partition("?")[2]) == State(
        7, update=4, low=0.5, marked=9, sort="spread"
    )


def test_other_filters_begin_the_list_anew():
    state = State(7, update=3, low=0.5, after="0.7_3", scope="run")
    assert read(state.url(truncated=True).partition("?")[2]) == State(
        7, update=3, low=0.5, truncated=True, scope="run"
    )
    assert state.cleared() == "/runs/7/trajectories?update=3"


def test_a_search_and_a_list_of_some_answers_end_each_other():
    listing = State(7, update=3, low=0.5, trained=True, marked=4)
    assert listing.url(q="word") == "/runs/7/trajectories?update=3&q=word&compare=4"
    searching = State(7, update=3, q="word", before=50)
    assert searching.url(low=0.5) == "/runs/7/trajectories?update=3&min=0.5"
    assert searching.url(update=4) == "/runs/7/trajectories?update=4"
    assert searching.url(before=20) == "/runs/7/trajectories?update=3&q=word&before=20"


def test_a_form_sends_along_what_it_does_not_change():
    state = State(7, update=3, group=1, low=0.5, high=1.0, after="0.7_3")
    assert state.fields("low", "high") == [("update", "3"), ("group", "1")]
    assert ("min", "0.5") in state.fields("update")
    assert ("group", "1") not in state.fields("update")


def test_the_same_answers_as_a_file():
    state = State(7, update=3, low=0.5, q="word", marked=3)
    assert state.file("csv") == "/runs/7/trajectories.csv?update=3&min=0.5"


def test_a_hit_is_shown_whatever_filters_there_were():
    state = State(1, skip="zero_signal", scope="run", low=0.5, by="length", q="word", marked=7)
    assert state.found(kind="train", update=2, group=1) == (
        "/runs/1/trajectories?update=2&group=1&by=length&compare=7"
    )
