"""Every page of the application, over a run whose words try to be more than words. Pages are found
by themselves: one that is added has to be told which rows it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from hostile import HOSTILE, MARK, TAME, Structure, tell_run
from httpx import Response
from web import page_headers

from app.routes import ROUTERS
from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app

PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
STREAMS = ("/live", "/runs/{run_id:id}/live", "/chat/{chat_id}/events")
"""They do not end; their twins have what they say."""
STATES = {
    "/runs/new": ["clone=1"],
    "/": ["q=zqx", "status=failed"],
    "/compare": ["run=1&run=2", "run=1&run=2&metric={text}&x=time", "run=1&run=99"],
    "/runs/{run_id:id}/config": ["against=2"],
    "/runs/{run_id:id}/journal": ["level=error&q={text}", "after=1", "q=zqx"],
    "/runs/{run_id:id}/metrics": ["filter={text}&x=tokens"],
    "/runs/{run_id:id}/metrics/table": ["name={text}"],
    "/runs/{run_id:id}/metrics/data": ["name={text}"],
    "/runs/{run_id:id}/metrics/data.csv": ["name={text}"],
    "/runs/{run_id:id}/trajectories": [
        "q=zqx&scope=run",
        "update=2",
        "update=2&group=0",
        "q={text}",
    ],
}
NEEDED = tuple(
    f"/runs/{{run_id:id}}/metrics/{name}" for name in ("table", "table.json", "data", "data.csv")
)
"""These have no state without a query."""
WORDLESS = ("/runs/new", "/compare?run=1&run=99", "/chat")
"""Addresses whose pages need not show any word of a run."""
EXPORTS = ("metrics.csv", "metrics.jsonl", "records.jsonl")


def routes() -> list[APIRoute]:
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(found) > 20, "routes are elsewhere now"
    return [route for route in found if "GET" in route.methods and route.path not in STREAMS]


class Site:
    """The application over two runs in which ``text`` is every word."""

    def __init__(self, folder: Path, text: str) -> None:
        self.text = text
        self.store = Store.open(str(folder / "store.db"))
        self.told = tell_run(self.store, folder / "run", text)
        assert tell_run(self.store, folder / "other", text).run_id == 2
        app = create_app(ServerSettings(workspace=folder, data_folder=folder / "data"), self.store)
        self.client = TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)
        self.drafts = [self._draft(words) for words in (text, _configuration(text))]

    def _draft(self, words: str) -> int:
        """A configuration that is being prepared, with a file of its own."""
        answer = self.client.post(
            "/runs/new",
            data={"toml": words},
            files=[("files", ("prompts.jsonl", self.text.encode()))],
            headers=page_headers(self.client, "/runs/new"),
        )
        assert answer.status_code == 303, answer.text
        return int(answer.headers["location"].rpartition("/")[2])

    def addresses(self, path: str) -> list[str]:
        """Of a route, in the states that are known of it."""
        known = {
            "run_id": self.told.run_id,
            "answer_id": self.told.answer_id,
            "artifact_id": self.told.artifact_id,
        }
        if path.endswith("/export/{name}"):
            return [address for name in EXPORTS for address in self.addresses(path[:-6] + name)]
        if "{draft_id:id}" in path:
            return [path.replace("{draft_id:id}", str(draft)) for draft in self.drafts]
        filled = PARAMETER.sub(lambda found: str(known[found[1]]), path)
        page = "/" if path == "/runs.json" else path.removesuffix(".json")
        states = [] if path in NEEDED else [""]
        states += [
            state.replace("{text}", quote(self.text[:180], "")) for state in STATES.get(page, [])
        ]
        return [f"{filled}?{state}" if state else filled for state in states]


def _configuration(text: str) -> str:
    """It is read well, and names files that are not there."""
    words = json.dumps(text)  # which TOML reads as well
    return f"""
[run]
algorithm = "grpo"
name = {words}
[model]
path = {words}
[output]
path = {words}
[grpo]
prompts = {words}
reward_command = ["python3", {words}]
updates = 1
prompts_per_update = 1
group_size = 2
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.2
kl_coefficient = 0.0
[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 8
seed = 1
"""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    hostile = Site(tmp_path_factory.mktemp("hostile"), HOSTILE)
    tame = Site(tmp_path_factory.mktemp("tame"), TAME)
    yield hostile, tame
    hostile.store.close()
    tame.store.close()


@pytest.fixture(scope="module")
def hostile(sites: tuple[Site, Site]) -> Site:
    return sites[0]


@pytest.fixture(scope="module")
def answers(hostile: Site) -> dict[str, Response]:
    """What every address that reads answers to a browser."""
    return {
        address: hostile.client.get(address, headers={"accept": "text/html"})
        for route in routes()
        for address in hostile.addresses(route.path)
    }


def is_page(answer: Response) -> bool:
    return answer.headers.get("content-type", "").startswith("text/html")


def test_every_address_answers(answers):
    failed = {
        address: answer.status_code
        for address, answer in answers.items()
        if answer.status_code >= 400
    }
    assert failed == {}
    assert sum(map(is_page, answers.values())) >= 10


def test_no_word_becomes_an_element_an_attribute_or_a_script(answers):
    faults = {
        address: Structure(answer.text).faults
        for address, answer in answers.items()
        if is_page(answer)
    }
    assert {address: found for address, found in faults.items() if found} == {}


def test_pages_are_made_of_what_they_are_made_of_with_plain_words(answers, sites):
    _, tame = sites
    plain: set[tuple[str, str]] = set()
    for route in routes():
        for address in tame.addresses(route.path):
            answer = tame.client.get(address, headers={"accept": "text/html"})
            if is_page(answer):
                plain |= Structure(answer.text).shapes
    added = {
        address: sorted(Structure(answer.text).shapes - plain)
        for address, answer in answers.items()
        if is_page(answer)
    }
    assert {address: shapes for address, shapes in added.items() if shapes} == {}


def test_the_words_are_shown_as_they_are(answers):
    """Which also shows that the pages above had them in."""
    silent = [
        address
        for address, answer in answers.items()
        if is_page(answer)
        and address not in WORDLESS
        and f"{MARK}<script>" not in Structure(answer.text).words
    ]
    assert silent == []
    assert not [
        address
        for address, answer in answers.items()
        if f"{MARK}<script>" in answer.text and is_page(answer)
    ]


def test_a_page_that_says_what_is_wrong_says_it_in_words(hostile):
    files = [("files", (f"{HOSTILE[:60]}.jsonl", b"{}"))]
    html = {"accept": "text/html"}
    headers = page_headers(hostile.client, "/runs/new") | html
    refused = hostile.client.post("/runs/new", data={"toml": ""}, files=files, headers=headers)
    assert refused.status_code == 400
    unknown = hostile.client.get(f"/{quote(HOSTILE)}", headers=html)
    invalid = hostile.client.get("/compare", params={"run": HOSTILE}, headers=html)
    for answer in (refused, unknown, invalid):
        assert Structure(answer.text).faults == []
        assert "<img src=x" not in answer.text
    assert "<img src=x" in Structure(refused.text).words


def test_nothing_that_is_data_is_taken_for_a_page(answers):
    for address, answer in answers.items():
        assert answer.headers["x-content-type-options"] == "nosniff", address
        assert "unsafe" not in answer.headers["content-security-policy"], address


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def test_every_twin_is_strict_json(answers):
    twins = 0
    for answer in answers.values():
        if answer.headers.get("content-type", "").startswith("application/json"):
            json.loads(answer.text, parse_constant=_no_constant)
            twins += 1
    assert twins >= 8


def test_every_line_of_an_export_is_strict_json(answers):
    lines = 0
    for answer in answers.values():
        if "ndjson" in answer.headers.get("content-type", ""):
            for line in (
                answer.text.splitlines() if "\u2028" not in answer.text else answer.text.split("\n")
            ):
                json.loads(line or "0", parse_constant=_no_constant)
                lines += 1
    assert lines > 3


def test_names_of_files_stay_inside_their_header(hostile):
    for path in ("config.toml", "artifacts/1", "export/metrics.csv", "export/records.jsonl"):
        answer = hostile.client.get(f"/runs/1/{path}")
        disposition = answer.headers["content-disposition"]
        assert disposition.startswith("attachment; filename=")
        assert disposition.isascii()
        assert disposition.isprintable()
        assert "<" not in disposition


def test_of_direction_and_control_characters_only_their_signs_are_shown(hostile):
    """Whose lines a reader might take for retrograd's own, or which turn round those beside."""
    pages = ("", "/metrics", "/trajectories", "/config?against=2", "/journal", "/artifacts")
    for page in ("/", "/compare?run=1&run=2", "/runs/1/delete", *(f"/runs/1{of}" for of in pages)):
        answer = hostile.client.get(page, headers={"accept": "text/html"})
        words = without_fields(answer.text)
        assert words
        for character in "\u202e\u2066\x1b\x07\x9b":
            assert character not in words, (page, character)


def without_fields(html: str) -> str:
    """A page without what it sends back as it is."""
    return re.sub(r'(?:value|data-(?:names|metric))="[^"]*"', "", html)
