import pytest

RULER = {
    "grpo.judge_weight": "0.35",
    "grpo.judge.type": '"ruler"',
    "grpo.judge.base_url": '"https://api.openai.com/v1"',
    "grpo.judge.model": '"gpt-5-mini"',
}
COMMAND = {
    "grpo.judge_weight": "0",
    "grpo.judge.type": '"command"',
    "grpo.judge.command": '["python3", "judge.py"]',
}


def test_the_documented_judge_loads(load):
    config = load(
        RULER
        | {
            "grpo.judge.api_key_env": '"OPENAI_API_KEY"',
            "grpo.judge.rubric": '"Prefer short answers."',
            "grpo.judge.cache_path": '"judge-cache.jsonl"',
        }
    )
    judge = config.grpo.judge
    assert config.grpo.judge_weight == 0.35
    assert judge.type == "ruler"
    assert judge.rubric == "Prefer short answers."
    assert judge.cache_path == config.folder / "judge-cache.jsonl"


def test_defaults_of_a_ruler_are_the_documented_ones(load):
    judge = load(RULER).grpo.judge
    assert judge.api_key_env == "OPENAI_API_KEY"
    assert (judge.rubric, judge.pairwise_rubric) == (None, None)
    assert (judge.temperature, judge.cache_path) == (None, None)
    assert (judge.max_concurrency, judge.timeout_secs, judge.max_retries) == (4, 120, 2)
    strategy, context = judge.strategy, judge.context
    assert (strategy.mode, strategy.anchor, strategy.max_pairs) == ("auto", True, None)
    assert (strategy.both_orders, strategy.aggregation) == (True, "win_rate")
    assert (context.max_request_chars, context.max_message_chars) == (60000, 2000)
    assert context.head_ratio == 0.4


def test_a_command_judge_loads(load):
    judge = load(COMMAND).grpo.judge
    assert judge.command == ["python3", "judge.py"]
    assert judge.timeout_secs == 30


def test_a_judge_needs_a_weight(refusal):
    message = refusal(RULER | {"grpo.judge_weight": None})
    assert "grpo.judge_weight is required with [grpo.judge]" in message


@pytest.mark.parametrize("value", [None, '"llm"', "3"])
def test_a_judge_needs_a_type(refusal, value):
    message = refusal(RULER | {"grpo.judge.type": value})
    assert "grpo.judge.type" in message
    assert 'must be "ruler" or "command"' in message


@pytest.mark.parametrize("key", ["base_url", "model"])
def test_a_ruler_needs_an_endpoint_and_a_model(refusal, key):
    assert f"grpo.judge.{key} is required" in refusal(RULER | {f"grpo.judge.{key}": None})


def test_a_command_judge_needs_its_command(refusal):
    message = refusal(COMMAND | {"grpo.judge.command": None})
    assert "grpo.judge.command is required" in message


def test_the_keys_of_the_other_type_are_refused(refusal):
    message = refusal(COMMAND | {"grpo.judge.base_url": '"http://127.0.0.1:1/v1"'})
    assert "is not a key of this type of [grpo.judge]" in message


@pytest.mark.parametrize("name", ["api_key", "key", "openai_api_key", "token", "api_secret"])
def test_a_key_in_the_file_is_refused_and_not_repeated(refusal, name):
    message = refusal(RULER | {f"grpo.judge.{name}": '"sk-abc123"'})
    assert f"grpo.judge.{name} is refused" in message
    assert "api_key_env" in message
    assert "sk-abc123" not in message


@pytest.mark.parametrize("value", ["sk-abc123", "gsk_abc123", "", "MY KEY", "1KEY"])
def test_the_variable_is_a_name_and_never_a_key(refusal, value):
    message = refusal(RULER | {"grpo.judge.api_key_env": f'"{value}"'})
    assert "grpo.judge.api_key_env must be the name of an environment variable" in message
    assert value == "" or value not in message


@pytest.mark.parametrize(
    "url", ["https://me:hidden@host/v1", "https://host/v1?api_key=hidden", "https://hidden@host"]
)
def test_an_address_with_a_key_is_refused_and_not_repeated(refusal, url):
    message = refusal(RULER | {"grpo.judge.base_url": f'"{url}"'})
    assert "must hold no user name, password, query or space" in message
    assert "hidden" not in message


@pytest.mark.parametrize("url", ["", "host/v1", "ftp://host", "https://", "http://host:99999"])
def test_an_address_that_is_none_is_refused(refusal, url):
    message = refusal(RULER | {"grpo.judge.base_url": f'"{url}"'})
    assert f'grpo.judge.base_url = "{url}" must be an http or https address' in message


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("judge_weight", "-1", "a number of at least 0"),
        ("judge_failure", '"retry"', '"drop_group" or "fail"'),
        ("max_judge_dropped_fraction", "1.1", "a number from 0 to 1"),
        ("max_judge_dropped_fraction", "-0.1", "a number from 0 to 1"),
        ("judge.rubric", '""', "text in quotes, not empty"),
        ("judge.temperature", "-1", "a number of at least 0"),
        ("judge.max_concurrency", "0", "an integer of at least 1"),
        ("judge.timeout_secs", "0", "a number above 0"),
        ("judge.max_retries", "-1", "an integer of at least 0"),
        ("judge.strategy.mode", '"pairs"', '"auto", "listwise", "chunked" or "pairwise"'),
        ("judge.strategy.anchor", "1", "true or false"),
        ("judge.strategy.max_pairs", "0", "an integer of at least 1"),
        ("judge.strategy.both_orders", '"no"', "true or false"),
        ("judge.strategy.aggregation", '"elo"', '"win_rate" or "bradley_terry"'),
        ("judge.context.max_request_chars", "0", "an integer of at least 1"),
        ("judge.context.max_message_chars", "0", "an integer of at least 1"),
        ("judge.context.head_ratio", "1.5", "a number from 0 to 1"),
    ],
)
def test_values_outside_the_range_are_refused(refusal, key, value, allowed):
    message = refusal(RULER | {f"grpo.{key}": value})
    assert f"grpo.{key} = {value} must be {allowed}" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("judge.temperature", "0"),
        ("judge.max_retries", "0"),
        ("judge.strategy.mode", '"pairwise"'),
        ("judge.strategy.max_pairs", "1"),
        ("judge.strategy.aggregation", '"bradley_terry"'),
        ("judge.context.head_ratio", "0"),
        ("judge.context.head_ratio", "1"),
        ("judge.context.max_message_chars", "60000"),
        ("judge_failure", '"fail"'),
        ("max_judge_dropped_fraction", "0"),
        ("max_judge_dropped_fraction", "1"),
    ],
)
def test_values_inside_the_range_are_accepted(load, key, value):
    section = load(RULER | {f"grpo.{key}": value}).grpo
    for part in key.split("."):
        section = getattr(section, part)
    assert section == (value.strip('"') if value.startswith('"') else float(value))


def test_a_message_fits_in_a_request(refusal):
    message = refusal(RULER | {"grpo.judge.context.max_request_chars": "1000"})
    assert "max_message_chars must be at most max_request_chars (1000)" in message
