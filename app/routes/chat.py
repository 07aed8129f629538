"""Talking to a run's adapter, with its base beside it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AfterValidator, BeforeValidator

from app.chat.conversations import USUAL_ANSWER, VOICES, Chat, ChatError, Draws, Exchange
from app.chat.desk import Desk
from app.chat.process import Partners
from app.jobs.queue import names_at_work
from app.routes.chat_partners import Talker, partners_of, talker_of, talkers
from app.routes.run_header import find_run
from app.server.errors import wants_html
from app.server.pages import PageContext, StoreDep, WholeNumber, page
from app.server.streams import RETRY_MILLISECONDS, next_for
from app.store.database import Store
from app.text import neutralise

router = APIRouter()

MOST_LETTERS = 8000
MOST_TOKENS = 4096
LARGEST_SEED = 10**15 - 1
"""What a script reads without rounding."""
_FRESH_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True)
class AnswerView:
    """``text`` and ``note`` as they are shown; ``voice`` says whose it is."""

    voice: str
    text: str
    note: str
    failed: bool


@dataclass(frozen=True, slots=True)
class ExchangeView:
    question: str
    seed: int
    answers: list[AnswerView]


@dataclass(frozen=True, slots=True)
class ChatView:
    id: str
    exchanges: list[ExchangeView]
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPage(PageContext):
    """``partner`` is the run that is talked to, among ``partners``; ``refusal`` why one that was
    asked for cannot be. ``draws`` are what the next message is answered with; ``training`` names
    the runs at work on this machine, which go first; ``draft`` is a message that
    failed, to mend."""

    partners: list[Talker]
    partner: Talker | None
    chat: ChatView | None
    draws: Draws | None
    refusal: str
    draft: str
    training: list[str]
    most_letters: int = MOST_LETTERS
    most_tokens: int = MOST_TOKENS
    largest_seed: int = LARGEST_SEED
    voices: tuple[str, ...] = VOICES
    title: str = "Chat"
    section: str = "chat"


def _drawable(temperature: float) -> float:
    """Nearly 0 is 0 in the sampler's single precision. Raises ValueError for it, and below 0."""
    if temperature != 0 and not temperature >= 0.01:
        raise ValueError("a temperature is 0, or from 0.01 to 100")
    return temperature


def _lines(text: str) -> str:
    """Forms send line breaks as CR LF; the page counts each as one letter."""
    return text.replace("\r\n", "\n")


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


DeskDep = Annotated[Desk, Depends(desk_of)]


# Not in a thread: a conversation changes on the event loop, from which it is looked for.
async def chat_of(chat_id: str, desk: DeskDep) -> Chat:
    chat = desk.find(chat_id)
    if chat is None:
        raise HTTPException(
            404,
            "This conversation is not there any more: it has given way to newer ones, or the "
            "server has started anew. Begin one.",
        )
    return chat


ChatDep = Annotated[Chat, Depends(chat_of)]


# A dependency ends with its request. The stream's own generator does not where the connection of a
# reader was reset: it is left alone, and ends when it is collected some day.
async def reader_of(chat: ChatDep, desk: DeskDep) -> AsyncIterator[asyncio.Event]:
    with chat.reading() as changed:
        try:
            yield changed
        finally:
            desk.left(chat)


ReaderDep = Annotated[asyncio.Event, Depends(reader_of)]


@page(router, "/chat", "chat/page.html")
def chat(
    store: StoreDep,
    desk: DeskDep,
    run: WholeNumber | None = None,
    chat: Annotated[str, Query(max_length=40)] = "",
) -> ChatPage:
    open_chat = desk.find(chat) if chat else None
    wanted = open_chat.run_id if open_chat is not None else run
    refusal = "That conversation is not there any more." if chat and open_chat is None else ""
    with store.read() as session:
        partners = talkers(session)
        if wanted is None and not chat and partners:
            wanted = partners[0].id
        partner = next((p for p in partners if p.id == wanted), None)
        if wanted is not None and partner is None:
            row = find_run(session, wanted)
            why = partners_of(session, row)
            # Older than those that are listed.
            partner = talker_of(row) if isinstance(why, Partners) else None
            if isinstance(why, str):
                refusal = f"Run {wanted}, {row.name}, cannot be talked to: {why}."
        training = names_at_work(session)
    return ChatPage(
        partners=partners,
        partner=partner,
        chat=_view(open_chat) if open_chat is not None else None,
        draws=None if partner is None else _next_draws(partner, open_chat),
        refusal=refusal,
        draft=_draft(open_chat) if open_chat is not None else "",
        training=training,
    )


@router.post("/chat")
async def say(
    request: Request,
    store: StoreDep,
    desk: DeskDep,
    run: Annotated[int, Form(ge=0, le=LARGEST_SEED)],
    message: Annotated[str, BeforeValidator(_lines), Form(min_length=1, max_length=MOST_LETTERS)],
    temperature: Annotated[float, AfterValidator(_drawable), Form(le=100, allow_inf_nan=False)],
    top_p: Annotated[float, Form(gt=0, le=1)],
    seed: Annotated[int, Form(ge=0, le=LARGEST_SEED)],
    max_new_tokens: Annotated[int, Form(ge=1, le=MOST_TOKENS)],
    system: Annotated[str, BeforeValidator(_lines), Form(max_length=MOST_LETTERS)] = "",
    chat: Annotated[str, Form(max_length=40)] = "",
) -> Response:
    """A page follows the answers as they come; a form gets the page with whole ones."""
    draws = Draws(temperature, top_p, seed, max_new_tokens, system.strip())
    try:
        if chat:
            going_on = await chat_of(chat, desk)
            # The run may be gone by now, or may have gone on and written its adapter anew.
            partners = await asyncio.to_thread(_partners, store, going_on.run_id)
            if not going_on.busy:
                going_on.partners = partners
        else:
            partners = await asyncio.to_thread(_partners, store, run)
            going_on = desk.open(run, partners)
        answers = desk.ask(going_on, message, draws)
    except ChatError as error:
        raise HTTPException(error.status, str(error)) from error
    if not wants_html(request):
        answers.add_done_callback(lambda _: desk.unread(going_on))
        place = len(going_on.exchanges) - 1
        return JSONResponse({"chat": going_on.id, "exchange": place}, 202)
    await answers
    return RedirectResponse(f"/chat?chat={going_on.id}", 303)


@router.post("/chat/{chat_id}/stop")
async def stop(request: Request, chat: ChatDep, desk: DeskDep) -> Response:
    """The answers end where they are."""
    desk.stop(chat)
    if wants_html(request):
        return RedirectResponse(f"/chat?chat={chat.id}", 303)
    return Response(status_code=204)


@router.get("/chat/{chat_id}/events", response_class=EventSourceResponse)
async def follow(
    request: Request,
    chat: ChatDep,
    desk: DeskDep,
    changed: ReaderDep,
    seen: WholeNumber = 0,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """What happens from the exchange ``seen`` on, and before that what has happened of it; to a
    reader who is still logged in."""
    again = last_event_id is not None and last_event_id.isascii() and last_event_id.isdecimal()
    telling = _Telling(int(last_event_id or 0) if again else seen)
    yield ServerSentEvent(event="open", data="", retry=RETRY_MILLISECONDS)
    while not desk.closed:
        changed.clear()
        for event in telling.news(chat, desk):
            yield event
        if not await next_for(request, changed.wait):
            return


@dataclass(slots=True)
class _Telling:
    """How far a page has been told what happens in a conversation."""

    place: int
    begun: bool = False
    phase: tuple[str, int] = ("", 0)
    letters: list[int] = field(default_factory=lambda: [0] * len(VOICES))
    ended: set[int] = field(default_factory=set)

    def news(self, chat: Chat, desk: Desk) -> Iterator[ServerSentEvent]:
        while self.place < len(chat.exchanges):
            exchange = chat.exchanges[self.place]
            over = exchange.phase == "over"
            yield from self._of(exchange, desk)
            if not over:
                return
            self.place += 1
            self.begun, self.phase, self.ended = False, ("", 0), set()
            self.letters = [0] * len(VOICES)
            # Only the last event of an exchange has an id: with less, it is told again.
            yield _event("over", {"exchange": self.place - 1}, id=str(self.place))

    def _of(self, exchange: Exchange, desk: Desk) -> Iterator[ServerSentEvent]:
        place = {"exchange": self.place}
        if not self.begun:
            self.begun = True
            question = neutralise(exchange.question, keep_newlines=True)
            yield _event("question", place | {"text": question, "seed": exchange.draws.seed})
        phase = (exchange.phase, desk.ahead(exchange))
        if phase != self.phase and exchange.phase != "over":
            self.phase = phase
            yield _event("phase", place | {"phase": phase[0], "ahead": phase[1]})
        for voice, spoken in enumerate(exchange.answers):
            text, over = spoken.text, spoken.over
            if len(text) > self.letters[voice]:
                fresh = neutralise(text[self.letters[voice] :], keep_newlines=True)
                self.letters[voice] = len(text)
                yield _event("text", place | {"voice": voice, "text": fresh})
            if over and voice not in self.ended:
                self.ended.add(voice)
                yield _event(
                    "end",
                    place | {"voice": voice, "note": _shown(spoken.note), "failed": spoken.failed},
                )


def _event(
    kind: Literal["question", "phase", "text", "end", "over"],
    data: dict[str, object],
    id: str | None = None,  # noqa: A002
) -> ServerSentEvent:
    return ServerSentEvent(event=kind, data=data, id=id)


def _partners(store: Store, run_id: int) -> Partners:
    """Raises ChatError where the run cannot be talked to."""
    with store.read() as session:
        run = find_run(session, run_id)
        partners = partners_of(session, run)
        if isinstance(partners, str):
            raise ChatError(f"Run {run_id} cannot be talked to: {partners}.")
        return partners


def _view(chat: Chat) -> ChatView:
    exchanges = [
        ExchangeView(
            question=_shown(exchange.question),
            seed=exchange.draws.seed,
            answers=[
                AnswerView(name, _shown(spoken.text), _shown(spoken.note), spoken.failed)
                for name, spoken in zip(VOICES, exchange.answers, strict=True)
            ],
        )
        for exchange in list(chat.exchanges)
    ]
    return ChatView(chat.id, exchanges, chat.busy)


def _draft(chat: Chat) -> str:
    last = chat.exchanges[-1] if chat.exchanges else None
    failed = last is not None and all(spoken.failed for spoken in last.answers)
    return last.question if last is not None and failed else ""


def _shown(text: str) -> str:
    return neutralise(text, keep_newlines=True)


def _next_draws(partner: Talker, chat: Chat | None) -> Draws:
    """As for the last message, with the next seed; else at the temperature of the run."""
    if chat is not None and chat.exchanges:
        last = chat.exchanges[-1].draws
        seed = (last.seed + 1) % (LARGEST_SEED + 1)
        return replace(last, seed=seed)
    # The run's own limit is its training's, and cuts a conversation short.
    tokens = min(USUAL_ANSWER, partner.ctx or USUAL_ANSWER)
    return Draws(partner.temperature, partner.top_p, secrets.randbelow(_FRESH_SEEDS), tokens)
