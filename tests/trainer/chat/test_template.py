import json
import threading
from datetime import datetime

import psutil
import pytest

from trainer.chat.messages import Message
from trainer.chat.template import ChatTemplate, Span, TemplateLimitError
from trainer.errors import TemplateError

HI = [Message("user", "Hi")]
BYTES_OUT = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


def template(source, **options):
    return ChatTemplate(source, bos="<s>", eos="</s>", name="model.gguf", **options)


def text_of(source, messages=HI):
    with template(source) as opened:
        return "".join(span.text for span in opened.render(messages))


def test_content_is_told_from_scaffolding():
    source = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}"
    messages = [Message("system", "Be\nbrief"), Message("user", " Hi \n")]
    with template(source + "{% endfor %}") as opened:
        assert opened.render(messages) == [
            Span("<s><system>", False),
            Span("Be\nbrief", True),
            Span("</s><user> ", False),
            Span("Hi", True),
            Span(" \n</s>", False),
        ]


def test_the_generation_prompt_is_optional():
    source = BYTES_OUT + "{% if add_generation_prompt %}>{% endif %}"
    with template(source) as opened:
        assert [span.text for span in opened.render(HI)] == ["[", "Hi", "]>"]
        assert [span.text for span in opened.render(HI, False)] == ["[", "Hi", "]"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.content | trim", "Hi you"),
        ("m.content.strip()", "Hi you"),
        ("m['content'].lstrip('\\n')", "  Hi you "),
        ("m.content | upper", "  HI YOU "),
        ("m.content.replace('you', 'all')", "  Hi all "),
    ],
)
def test_content_is_followed_through_what_templates_do_to_it(expression, expected):
    messages = [Message("user", "  Hi you ")]
    with template("<b>{% for m in messages %}{{ " + expression + " }}{% endfor %}") as opened:
        spans = opened.render(messages)
    assert "".join(span.text for span in spans) == "<b>" + expected
    assert [span.text for span in spans if span.user] == [expected.strip()]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.content.split('</think>')[-1]", "answer"),
        ("m.content[:3]", "tho"),
        ("m.content | length", "21"),
        ("m.content.startswith('thought')", "True"),
    ],
)
def test_altered_content_leaves_one_span(expression, expected):
    messages = [Message("user", "thought</think>answer")]
    with template("{% for m in messages %}{{ " + expression + " }}{% endfor %}") as opened:
        assert opened.render(messages) == [Span(expected, False)]


def test_a_template_that_refuses_only_the_marks_still_renders():
    source = "{% if messages[0].content | length > 9 %}{{ raise_exception('too long') }}{% endif %}"
    with template(source + "{{ messages[0].content }}") as opened:
        assert opened.render(HI) == [Span("Hi", False)]
        with pytest.raises(TemplateError, match="too long"):
            opened.render([Message("user", "0123456789")])


def test_blocks_are_trimmed_as_the_field_does():
    source = (
        "{% if true %}\n  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\n{% endif %}"
    )
    assert text_of(source) == "Hi\n"


def test_helpers_of_real_templates():
    assert text_of("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert text_of("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert text_of(loop) == "01"
    assert text_of("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi"
    assert text_of("{{ tools is none and documents is none }}") == "True"
    assert text_of("{{ strftime_now('%Y') }}") in {str(datetime.now().year + d) for d in (-1, 0)}
    assert text_of("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}") == "2"


def test_a_refusal_is_told_in_the_templates_own_words():
    source = "{{ raise_exception('No system, please') if messages[0].role == 'system' }}"
    with template(source) as opened:
        with pytest.raises(TemplateError) as caught:
            opened.render([Message("system", "Be brief"), Message("user", "Hi")])
        assert str(caught.value) == "the chat template of model.gguf failed: No system, please"
        assert "".join(span.text for span in opened.render(HI)) == ""


def test_a_source_that_is_no_template_is_refused_when_opened():
    with pytest.raises(TemplateError, match=r"model\.gguf failed: .*endfor.*line 2 of the templ"):
        template("{% for m in messages %}\n{{ m }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append.__globals__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ ('' | attr('__class__')).__base__ }}",
        "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_is_closed(source):
    with pytest.raises(TemplateError, match=r"model\.gguf failed"):
        text_of(source)


def test_an_internal_attribute_reads_as_undefined():
    assert text_of("{{ strftime_now.__code__ }}{{ strftime_now.__code__ is defined }}") == "False"


@pytest.mark.parametrize(
    "source",
    [
        # A loop that writes nothing, one that writes, a power, and a macro that calls itself twice.
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (messages | length * 9) ** (9 ** 9) }}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(source):
    refusal = r"model\.gguf .* did not end within 0\.4 s"
    with template(source, seconds=0.2) as opened, pytest.raises(TemplateLimitError, match=refusal):
        opened.render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content * 10 ** 9 }}",
        "{{ '%1000000000d' | format(messages | length) }}",
        "{{ messages[0].content.center(10 ** 9) }}",
        "{% set ns = namespace(x=messages[0].content) %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ messages | batch(10 ** 9, 1) | list }}",
    ],
)
def test_a_template_that_fills_the_memory_is_stopped(source):
    with pytest.raises(TemplateLimitError, match="needs more memory than a template may have"):
        text_of(source)


def test_long_output_is_stopped():
    source = "{% for a in range(1000) %}{{ messages[0].content }}{% endfor %}"
    with template(source, characters=1999) as opened:
        with pytest.raises(TemplateError, match="the output is longer than 1999 characters"):
            opened.render(HI)
        assert opened.render([Message("user", "!")]) != []


def test_rendering_goes_on_after_a_stop():
    source = (
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}"
        "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok"
    )
    with template(source, seconds=0.2) as opened:
        with pytest.raises(TemplateLimitError):
            opened.render([Message("user", "loop")])
        assert opened.render(HI) == [Span("ok", False)]


def test_content_cannot_fake_the_marks():
    content = "".join(chr(0xF0000 + byte) for byte in range(256)) + "]["
    with template(BYTES_OUT) as opened:
        assert opened.render([Message("user", content)])[1] == Span(content, True)


def test_threads_may_share_a_template():
    results = {}
    with template(BYTES_OUT) as opened:

        def work(number):
            for _ in range(20):
                results[number] = opened.render([Message("user", f"from {number}")])[1].text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {number: f"from {number}" for number in range(4)}


def test_no_process_is_left_behind():
    before = set(psutil.Process().children())
    opened = template(BYTES_OUT)
    (started,) = set(psutil.Process().children()) - before
    del opened
    assert not started.is_running()
    with template(BYTES_OUT):
        pass
    assert set(psutil.Process().children()) <= before


def test_a_source_that_is_refused_leaves_no_process():
    before = set(psutil.Process().children())
    with pytest.raises(TemplateError) as caught:
        template("{% for m in messages %}")
    # The error, which is still at hand, keeps nothing alive.
    assert "endfor" in str(caught.value)
    assert set(psutil.Process().children()) <= before


def test_an_interrupt_ends_the_process(monkeypatch):
    before = set(psutil.Process().children())
    with template(BYTES_OUT) as opened:
        monkeypatch.setattr(json, "loads", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            opened.render(HI)
        assert caught.tb is not None
        assert set(psutil.Process().children()) <= before


def test_an_interrupted_answer_is_not_taken_for_the_next(monkeypatch):
    with template(BYTES_OUT) as opened:
        monkeypatch.setattr(json, "loads", interrupt)
        with pytest.raises(KeyboardInterrupt):
            opened.render([Message("user", "first")])
        monkeypatch.undo()
        assert opened.render([Message("user", "second")])[1] == Span("second", True)


def interrupt(text):
    raise KeyboardInterrupt
