"""Putting a conversation into text with the model's own template. Templates run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.generation_request import ChatMessage
from paceline.errors import ConfigurationError, InvalidRequest
from paceline.model_folder import ModelFolder


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, folder: ModelFolder, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigurationError(
                f"the chat template of {folder.path} is not valid: {error}; correct or remove it"
            ) from error
        self._special = {"bos_token": folder.bos_token or "", "eos_token": folder.eos_token or ""}

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """Return the prompt; raises ``InvalidRequest`` when the template refuses the messages."""
        try:
            return self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidRequest(
                f"chat: the model's chat template refuses these messages: {error}; "
                "change their roles or order, or send text instead",
                field="chat",
            ) from error


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
