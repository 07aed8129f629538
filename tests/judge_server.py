"""A real endpoint on loopback that judges as a test says, or misbehaves."""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

from trainer.chat.messages import Message, PromptLine
from trainer.config.judge import CommandJudge, RulerJudge
from trainer.judge.judge import open_judge
from trainer.judge.pauses import Pauses
from trainer.judge.questions import GroupToJudge

KEY = "sk-test-4f9a1c77d0"
HASTY = Pauses(first=0.01, longest=0.05, longest_wish=2.0)


@dataclass
class Response:
    """What the server sends: ``body`` as it is, ``delay`` seconds late."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


def says(text, **options):
    """A completion with this text."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return Response(json.dumps({"choices": [choice]}).encode(), **options)


@dataclass
class Request:
    """A request as an obedient judge reads it: by the marks that the system message names."""

    path: str
    headers: dict[str, str]
    payload: dict[str, object]

    @property
    def system(self):
        return self.payload["messages"][0]["content"]

    @property
    def user(self):
        return self.payload["messages"][1]["content"]

    @property
    def tag(self):
        return re.search(r"<answer A ([0-9a-f]{12})>", self.system)[1]

    def parts(self):
        """Each part's name with its text, in order, and what stands outside of all parts."""
        pattern = rf"<([^<>]+) {self.tag}>\n(.*?)\n</\1 {self.tag}>"
        found = re.findall(pattern, self.user, re.DOTALL)
        return found, re.sub(pattern, "", self.user, flags=re.DOTALL)

    def answers(self):
        """id → text, in the order in which they are sent."""
        return {
            name.removeprefix("answer "): text
            for name, text in self.parts()[0]
            if name.startswith("answer ")
        }

    @property
    def pairwise(self):
        return '"better"' in self.system

    def rng(self):
        """Noise that follows from the request, so that threads cannot change it."""
        return Random(hashlib.sha256(self.user.encode()).digest())


class JudgeServer:
    """``behave`` makes a response of a request; all requests are kept."""

    def __init__(self, behave):
        self.behave = behave
        self.requests = []
        self.times = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def respond(self, request):
        with self._lock:
            self.times.append(time.monotonic())
            self.requests.append(request)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        response = self.behave(request)
        time.sleep(response.delay)
        with self._lock:
            self._now -= 1
        return response

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                response = server.respond(Request(self.path, headers, json.loads(body)))
                try:
                    self.send_response(response.status)
                    for name, value in response.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(response.body)))
                    self.end_headers()
                    self.wfile.write(response.body)
                    self.wfile.flush()
                except OSError:
                    self.close_connection = True  # The client lost its patience.

            def log_message(self, *_):
                return

        return Handler


def in_turn(*responses):
    """A behaviour that gives these responses one after the other."""
    turns = iter(responses)
    return lambda _: next(turns)


def scores(request, of):
    """A listwise reply with ``of(text, place)`` for each answer."""
    items = [
        {"id": name, "explanation": f"about {name}", "score": of(text, place)}
        for place, (name, text) in enumerate(request.answers().items())
    ]
    return says(json.dumps({"scores": items}))


def quality(text):
    """The hidden worth of a made-up answer, 1 to 8."""
    return int(re.search(r"quality (\d+)", text)[1])


def by_quality(request):
    """A judge without noise."""
    if not request.pairwise:
        return scores(request, lambda text, _: quality(text) / 10)
    (one, first), (other, second) = request.answers().items()
    return says(json.dumps({"better": one if quality(first) > quality(second) else other}))


def prompt(question="What is 2 + 2?", rubric=None, line=7):
    return PromptLine(line, (Message("user", question),), {}, rubric, f"key of {question}")


def group(*answers, question="What is 2 + 2?", rubric=None, weights=None):
    return GroupToJudge(prompt(question, rubric), answers, weights or [0.35] * len(answers))


def eight(question="What is 2 + 2?"):
    """Eight answers of quality 3, 7, 1, 8, 4, 2, 6, 5."""
    return group(
        *(f"an answer of quality {q}" for q in (3, 7, 1, 8, 4, 2, 6, 5)), question=question
    )


def section(url="http://127.0.0.1:9/v1", cache_path=None, **keys):
    fields = {"type": "ruler", "base_url": url, "model": "judge-1", **keys}
    return RulerJudge.model_validate(fields).model_copy(update={"cache_path": cache_path})


def command_section(*command, **keys):
    return CommandJudge.model_validate({"type": "command", "command": list(command), **keys})


def opened(url, environment=None, **keys):
    """A judge of an endpoint with short pauses; keys of ``open_judge`` begin with ``_``."""
    options = {name[1:]: keys.pop(name) for name in list(keys) if name.startswith("_")}
    return open_judge(
        section(url, **keys),
        folder=Path("/project"),
        environment={"OPENAI_API_KEY": KEY} if environment is None else environment,
        **{"seed": 42, "pauses": HASTY, **options},
    )


def numbers(ruling):
    assert ruling.failure is None, ruling.failure
    return [verdict.score for verdict in ruling.verdicts]
