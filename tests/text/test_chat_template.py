"""Chat templates render as transformers renders them, and a hostile one harms nobody."""

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
    "source", ["{% for %}", "{{ x", "{% nonsense %}", "a" * (chat_template.MAX_TEMPLATE_CHARS + 1)]
)
def test_broken_templates_are_told_when_loading(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="template"):
        ChatTemplate(source, {})
