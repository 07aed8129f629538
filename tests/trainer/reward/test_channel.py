import pytest
from reward_programs import ONE_BY_ONE, rewards, score_error

from trainer.errors import RewardError


def test_batch_far_larger_than_a_pipe_answered_one_by_one(open_program, requests_of):
    with open_program(ONE_BY_ONE) as program:
        assert rewards(program.score(requests_of(*["x" * 20_000] * 64))) == [20_000] * 64


def test_batch_far_larger_than_a_pipe_answered_at_the_end(answering, requests_of):
    body = "for r in requests: reply(r, len(r['completion']), pad='y' * 20_000)"
    with answering(body) as program:
        assert rewards(program.score(requests_of(*["x" * 20_000] * 64))) == [20_000] * 64


def test_hard_text_arrives_whole(answering, requests_of):
    texts = ["a\ud800b", "\0\x1b\n\r\u2028", "日本 😀", ""]
    body = "for r in requests: reply(r, sum(map(ord, r['completion'])))"
    with answering(body) as program:
        found = rewards(program.score(requests_of(*texts)))
    assert found == [sum(map(ord, t.replace("\ud800", "\ufffd"))) for t in texts]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (r"b'a warning\n'", "not JSON"),
        (r"b'\n'", "blank line"),
        (r"""b'{"debug":1}\n'""", "not a reply"),
        (r"b'\r10%\r20%\n'", "carriage returns"),
        (r"b'caf\xe9\n'", "not valid UTF-8 (byte 0xe9 at position 3)"),
        (r"b'z' * (8 * 2**20 + 1)", "more than 8388608 bytes"),
    ],
    ids=["text", "blank", "debug", "bar", "latin-1", "endless"],
)
def test_stray_output_is_an_error_that_names_it(answering, requests_of, written, problem):
    body = f"""
    reply(requests[0])
    sys.stdout.buffer.write({written})
    sys.stdout.buffer.flush()
    """
    message = score_error(answering(body), requests_of("a", "b"))
    assert problem in message
    assert "stderr" in message.partition("Its stderr")[0]
    assert "The line: " in message


def test_line_after_the_end_of_a_batch_fails_the_next_one(open_program, requests_of):
    source = ONE_BY_ONE + "    if 'batch_end' in line: print('on to the next', flush=True)\n"
    with open_program(source) as program:
        assert rewards(program.score(requests_of("a"))) == [1]
        with pytest.raises(RewardError, match="The line: on to the next"):
            program.score(requests_of("b"))


def test_crlf_is_accepted(open_program, requests_of):
    with open_program(ONE_BY_ONE.replace("chr(10)", "chr(13) + chr(10)")) as program:
        assert rewards(program.score(requests_of("a"))) == [1]


def test_timeout_shows_a_line_without_end(answering, requests_of):
    body = "sys.stdout.write('42% done'); sys.stdout.flush(); time.sleep(600)"
    message = score_error(answering(body, timeout=1.5), requests_of("a"))
    assert "wrote without ending the line: 42% done" in message


def test_exchange_hears_every_line(open_program, requests_of):
    heard = []

    class Log:
        def sent(self, line):
            heard.append(f"> {line}")

        def received(self, line):
            heard.append(f"< {line}")

    place = '"_retrograd_batch": 1, "_retrograd_index": 0'
    with open_program(ONE_BY_ONE, exchange=Log()) as program:
        program.score(requests_of("é"))
    assert heard[0] == '> {"protocol": "retrograd-reward/1"}'
    assert heard[1] == '< {"protocol": "retrograd-reward/1"}'
    assert heard[2].startswith('> {"prompt": "What is 2 + 2?", "completion": "\\u00e9", "messages"')
    assert heard[2].endswith('"metadata": {}, ' + place + "}")
    assert sorted(heard[3:]) == [
        '< {"_retrograd_batch_end": 1}',
        '< {"reward": 1, ' + place + "}",
        '> {"_retrograd_batch_end": 1}',
    ]
