"""Full-text search in answers and prompts, the same words for both kinds of database."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, column, false, func, literal_column, select, table
from sqlalchemy.orm import Session

from app.store.models import Answer, Prompt

_PIECES = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w")


def matches(
    session: Session, model: type[Answer] | type[Prompt], words: str
) -> ColumnElement[bool]:
    """The condition for rows whose text has all ``words``, in any order and case. Words between
    double quotes stand one after the other; a word that ends in ``*`` is the beginning of one.
    Nothing matches where there is no word in it."""
    terms = _terms(words)
    if not terms:
        return false()
    if session.get_bind().dialect.name == "postgresql":
        return _in_postgresql(model, terms)
    name = f"{model.__tablename__}_fts"
    index = table(name, column("rowid"))
    found = select(index.c.rowid).where(literal_column(name).op("MATCH")(_fts5(terms)))
    return model.id.in_(found)


def newest(
    session: Session, words: str, lowest: int, below: int, limit: int
) -> Sequence[int] | None:
    """Ids of answers, of whatever run, with ``words`` (as in `matches`), from ``below`` down to
    ``lowest``. SQLite's index holds them in this order, so that the rest is not looked at. None
    where the database has no such index: sort what `matches`."""
    if session.get_bind().dialect.name != "sqlite":
        return None
    terms = _terms(words)
    if not terms:
        return []
    name = f"{Answer.__tablename__}_fts"
    number = table(name, column("rowid")).c.rowid
    chosen = select(number).where(
        literal_column(name).op("MATCH")(_fts5(terms)), number < below, number >= lowest
    )
    return session.scalars(chosen.order_by(number.desc()).limit(limit)).all()


def _fts5(terms: list[tuple[str, bool]]) -> str:
    return " ".join(f'"{text}"' + ("*" if begins else "") for text, begins in terms)


def _terms(words: str) -> list[tuple[str, bool]]:
    """Phrases without quotes, each with whether its last word is a beginning only."""
    found = []
    for quoted, plain in _PIECES.findall(words.replace("\0", " ")):
        text = (quoted or plain).replace('"', " ").strip()
        if _WORD.search(text):
            found.append((text.rstrip("*"), not quoted and text.endswith("*")))
    return found


def _in_postgresql(
    model: type[Answer] | type[Prompt], terms: list[tuple[str, bool]]
) -> ColumnElement[bool]:
    # As the index has it: the planner compares expressions.
    text = func.left(func.coalesce(model.text, literal_column("''")), literal_column("100000"))
    vector = func.to_tsvector(literal_column("'simple'"), text)
    conditions = []
    for phrase, begins in terms:
        query = func.phraseto_tsquery("simple", phrase)
        if begins:
            # There is no function that makes a beginning of a person's words.
            quoted = func.quote_literal(phrase.lower())
            query = func.to_tsquery("simple", func.concat(quoted, ":*"))
        conditions.append(vector.op("@@")(query))
    return and_(*conditions)
