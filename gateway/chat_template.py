"""Putting a conversation into text with the model's own template. Its bounds: the sandbox's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jinja2 import TemplateError

from gateway.generation_request import ChatMessage
from gateway.template_sandbox import BoundedEnvironment, render_bounded
from paceline.errors import ConfigurationError, InvalidRequest
from paceline.model_folder import ModelFolder

MAX_GROWTH: Final = 4
"""Times that a template may repeat what the messages say."""

MAX_FRAME_CHARACTERS: Final = 1_000_000
"""What it may add to that: roles, marks, instructions of its own."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, folder: ModelFolder, source: str) -> None:
        try:
            self._template = BoundedEnvironment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ConfigurationError(
                f"the chat template of {folder.path} is not valid: {error}; correct or remove it"
            ) from error
        self._special = {"bos_token": folder.bos_token or "", "eos_token": folder.eos_token or ""}

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """Return the prompt; raises ``InvalidRequest`` when the template refuses the messages."""
        said = sum(len(message.content) for message in messages)
        try:
            return render_bounded(
                self._template,
                MAX_GROWTH * said + MAX_FRAME_CHARACTERS,
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except (
            *(TemplateError, TypeError, ValueError, ArithmeticError, LookupError),
            *(AttributeError, RecursionError, MemoryError),
        ) as error:
            raise InvalidRequest(
                f"chat: the model's chat template refuses these messages: {error}; "
                "change their roles or order, or send text instead",
                field="chat",
            ) from error
