"""Chat templates are rendered like transformers', and a hostile one harms no other request."""

import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from octavo_engine.text import chat_template
from octavo_engine.text.chat_template import ChatTemplate, ChatTemplateError
from octavo_engine.text.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>&</b> 'quote'"},
    {"role": "assistant", "content": "  Hello\n"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{{ eos_token }}{% endfor %}",
    "{% for m in messages %}\n    {% if m.role == 'user' %}\nU:{{ m.content | trim }}\n    {% endif %}\n{% endfor %}\n",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% if tools %}T{% endif %}{% if add_generation_prompt %}A:{% endif %}{{ enable_thinking is defined }}",
    "{{ '%s: %5.2f%%' % ('a', 1.5) }}{{ '{:>4}|{}'.format(1, 'x') }}{{ 'a' * 3 }}",
    "{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] + [2] }}",
    "{{ 'a' ~ 1 ~ none ~ nothing }}{{ 'a-b'.replace('-', '+') }}",
    "{{ 'aa' | replace('a', 'b', 1) }}{{ '%s' | format(5) }}",
    "{{ ['a', 'b'] | join(', ') }}{{ messages | join('|', attribute='role') }}{{ '-'.join(['a', 'b']) }}",
    "{{ 'x' | center(9) }}{{ 'a\nb' | indent(2, true) }}{{ 'x'.ljust(4) }}{{ 1.55 | round(1) }}",
    "{{ [1, 2] | batch(2) | list }}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ 'a b c' | wordwrap(2) }}",
    "{% macro show(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("generation", [True, False])
def test_renders_as_transformers(source: str, generation: bool) -> None:
    expected, _ = render_jinja_template([CHAT], chat_template=source, add_generation_prompt=generation, **TOKENS)
    assert ChatTemplate(source, TOKENS).render(CHAT, add_generation_prompt=generation) == expected[0]


@pytest.mark.parametrize("source", [TEMPLATES[0], TEMPLATES[1], TEMPLATES[0].replace("m.content", "m.content | trim")])
def test_continues_the_final_message_as_transformers(source: str) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Once upon "}]
    expected, _ = render_jinja_template([chat], chat_template=source, continue_final_message=True, **TOKENS)
    actual = ChatTemplate(source, TOKENS).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert actual == expected[0]
    assert chat[-1]["content"] == "Once upon "  # the caller's messages are left alone


def test_the_demo_models_template(smollm2: Tokenizer) -> None:
    assert smollm2.chat_template is not None
    assert smollm2.chat_template.render([{"role": "user", "content": "Hi"}]).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_strftime_now_is_today() -> None:
    today = {datetime.datetime.now().strftime("%d %b %Y")}
    rendered = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}).render([])
    today.add(datetime.datetime.now().strftime("%d %b %Y"))  # midnight may have passed
    assert rendered in today


def test_a_template_can_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append({}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
        "{% for i in range(99) recursive %}{% if loop.depth < 9 %}{{ loop(range(99)) }}{% endif %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 1.5 | round(10**9, 'ceil') }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10**9) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a' | attr('zfill')(10**9) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ ['a'] | map('center', 10**9) | list }}",
        "{{ 'a' | indent(10**9, true) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ [1] | batch(10**9, 0) | list }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ lipsum(10**9) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**6).join(range(99999) | map('string')) }}",
        "{{ range(99999) | join('a' * 10**6) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set x = 'a' * 10**7 %}{% for i in range(99999) %}{% set y = x ~ i %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[99].content.strip() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_hostile_templates_end_in_an_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {}).render(CHAT)


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1000)
    with pytest.raises(ChatTemplateError, match="more than 1000 characters"):
        ChatTemplate("{% for i in range(1000) %}{{ messages }}{% endfor %}", {}).render(CHAT)


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_a_request_cannot_replace_what_the_server_gives(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=name):
        ChatTemplate("", TOKENS).render(CHAT, variables={name: "x"})


def test_a_request_can_add_variables() -> None:
    assert ChatTemplate("{{ enable_thinking }}", {}).render([], variables={"enable_thinking": False}) == "False"


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ x",
        "{% nonsense %}",
        "a" * (chat_template.MAX_TEMPLATE_CHARS + 1),
        "{% for x in [1] %}" * 25 + "{% endfor %}" * 25,
        "{% if x %}" * 120 + "{% endif %}" * 120,
        "{% break %}",
        "{{ dict(a=1, a=2) }}",
        "{% macro m(a, a) %}{% endmacro %}",
        "{{ " + "9" * 5000 + " }}",
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    ],
)
def test_broken_templates_are_reported_when_loading(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="template"):
        ChatTemplate(source, {})
