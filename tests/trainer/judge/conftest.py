"""Servers that end with their test."""

import pytest
from judge_server import JudgeServer, in_turn


@pytest.fixture
def serve():
    """Starts a server with a behaviour, or with responses that it gives in turn."""
    started = []

    def start(*behaviour):
        single = len(behaviour) == 1 and callable(behaviour[0])
        started.append(JudgeServer(behaviour[0] if single else in_turn(*behaviour)))
        return started[-1]

    yield start
    for server in started:
        server.close()
