from __future__ import annotations

import pytest
from sqlalchemy.engine import make_url

from app.store.urls import has_file, hide_secrets, url_of, without_secrets


@pytest.mark.parametrize("place", ["runs.db", "sqlite:///runs.db", "sqlite:///../there/runs.db"])
def test_a_file_is_named_in_full_and_without_links(tmp_path, monkeypatch, place):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path / "link")
    assert url_of(place).database == str(tmp_path / "there" / "runs.db")
    assert has_file(url_of(place))


@pytest.mark.parametrize("place", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:a?uri=true"])
def test_a_database_without_a_path_is_left_as_it_is(place):
    assert url_of(place) == make_url(place)
    assert not has_file(url_of(place))


SECRET = [
    "postgresql+psycopg://me:hunter2@h/db",
    "postgresql+psycopg://h/db?user=me&password=hunter2",
    "postgresql+psycopg://h/db?sslpassword=hunter2&user=me",
    "postgresql+psycopg://h/db?PassFile=/home/hunter2",
]


@pytest.mark.parametrize("url", SECRET)
def test_a_password_is_not_shown_wherever_it_stands(url):
    for shown in (without_secrets(url_of(url)), hide_secrets(f"serve --store {url} --port 1")):
        assert "hunter2" not in shown
        assert "me" in shown or "user" not in url
        assert "@h/db" in shown or "//h/db" in shown


def test_other_words_stay():
    words = "train run.toml --set rollout.seed=3 http://host/?page=2"
    assert hide_secrets(words) == words
