"""Conversations put into text by a model's own template."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import template_sandbox
from gateway.chat_template import ChatTemplate
from gateway.generation_request import ChatMessage
from paceline.errors import ConfigurationError, InvalidRequest
from paceline.model_folder import read_model_folder
from tests.doubles.model_folders import CHAT_TEMPLATE, write_model_folder

HELLO = (ChatMessage("user", "hi"),)


def template(path: Path, source: str) -> ChatTemplate:
    """Return a compiled template."""
    return ChatTemplate(read_model_folder(write_model_folder(path)), source)


def test_the_template_ends_where_the_assistant_starts_on_demand(tmp_path: Path) -> None:
    chat = template(tmp_path, CHAT_TEMPLATE)

    assert chat.render(HELLO, add_generation_prompt=True) == "<bos>user: hi\nassistant:"
    assert chat.render(HELLO, add_generation_prompt=False) == "<bos>user: hi\n"


def test_what_the_template_refuses_is_the_clients_fault(tmp_path: Path) -> None:
    chat = template(tmp_path, CHAT_TEMPLATE)
    late_system = (*HELLO, ChatMessage("system", "be brief"))

    with pytest.raises(InvalidRequest, match="system comes first") as refused:
        chat.render(late_system, add_generation_prompt=True)

    assert refused.value.field == "chat"


def test_message_text_is_not_interpreted(tmp_path: Path) -> None:
    chat = template(tmp_path, CHAT_TEMPLATE)
    hostile = (ChatMessage("user", "{{ 7 * 7 }} <b>&</b>"),)

    text = chat.render(hostile, add_generation_prompt=False)

    assert text == "<bos>user: {{ 7 * 7 }} <b>&</b>\n"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, source: str) -> None:
    with pytest.raises(InvalidRequest):
        template(tmp_path, source).render(HELLO, add_generation_prompt=True)


def test_a_template_that_does_not_compile_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="chat template"):
        template(tmp_path, "{% for %}")


SPIN = "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% if a.x and b.y %}"
SPIN += "{% endif %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x'|center(10000000000) }}",
        "{% for a in range(100001) %}{% endfor %}",
        "{% for a in range(400) %}{% for b in range(400) %}{% endfor %}{% endfor %}",
        "{% for a in range(9000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages[0].content.missing() }}",
    ],
)
def test_what_one_rendering_costs_is_bounded(tmp_path: Path, source: str) -> None:
    try:
        chat = template(tmp_path, source)
    except ConfigurationError:
        return
    with pytest.raises(InvalidRequest):
        chat.render(HELLO, add_generation_prompt=True)


def test_a_rendering_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.05)
    chat = template(tmp_path, SPIN)

    with pytest.raises(InvalidRequest, match="longer than"):
        chat.render(HELLO * 1000, add_generation_prompt=True)


def test_what_real_templates_do_is_within_the_bounds(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 % 2 == 0 %}{{ '-' * 3 }}{% endif %}"
        "{{ m['role'].upper() }} {{ m.content | trim }} {{ range(3) | list }}{% endfor %}"
    )
    chat = template(tmp_path, source)

    assert chat.render(HELLO, add_generation_prompt=True) == "---USER hi [0, 1, 2]"
