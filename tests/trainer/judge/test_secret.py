import copy
import pickle

import pytest

from trainer.errors import ConfigError
from trainer.judge.secret import ApiKey, read_key

KEY = "sk-test-4f9a1c77d0"


def test_a_key_shows_itself_to_the_endpoint_alone():
    key = ApiKey(KEY)
    assert key.header() == f"Bearer {KEY}"
    shown = [repr(key), str(key), f"{key}", f"{key!r:>40}", "%s" % key, repr([key]), repr({1: key})]  # noqa: UP031
    assert not [text for text in shown if KEY in text]
    assert not hasattr(key, "__dict__")


def test_a_key_is_not_pickled_or_copied():
    with pytest.raises(TypeError, match="a key is not written anywhere"):
        pickle.dumps(ApiKey(KEY))
    with pytest.raises(TypeError, match="a key is not written anywhere"):
        copy.deepcopy(ApiKey(KEY))


def test_a_key_that_comes_back_is_taken_out():
    assert ApiKey(KEY).redact(f"bad key {KEY}, {KEY}!") == "bad key [key], [key]!"


def test_a_word_that_a_local_server_takes_for_a_key_leaves_replies_as_they_are():
    assert ApiKey("x").redact('{"explanation": "next"}') == '{"explanation": "next"}'


def test_the_newline_of_a_file_is_no_part_of_a_key():
    assert read_key({"K": f"{KEY}\n"}, "K", required=True).header() == f"Bearer {KEY}"


@pytest.mark.parametrize("environment", [{}, {"K": ""}, {"K": " \n"}])
def test_a_key_that_is_named_has_to_be_there(environment):
    assert read_key(environment, "K", required=False) is None
    with pytest.raises(ConfigError, match="The environment variable K, which api_key_env"):
        read_key(environment, "K", required=True)


@pytest.mark.parametrize("bad", ["sk test", "sk\ntest", "sk\x00test", "sk-tést", "sk-\x7f"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(bad):
    with pytest.raises(ConfigError) as caught:
        read_key({"K": bad}, "K", required=False)
    assert "which no key has" in str(caught.value)
    assert "sk" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
