"""Prompts into token ids, off the event loop when they are long. The way back: ``detokenizer``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from tokenizers import Tokenizer

from gateway.chat_template import ChatTemplate
from gateway.detokenizer import Decoding
from gateway.generation_request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from paceline.errors import ConfigurationError, InvalidRequest
from paceline.model_folder import ModelFolder, read_model_folder, tokenizer_fingerprint

INLINE_CHARACTERS: Final = 2_000
"""Shorter prompts take less time to tokenize than a hand-over to a thread."""

MESSAGE_CHARACTERS: Final = 32
"""What rendering one message takes, in characters to tokenize."""

T = TypeVar("T")


class PromptTokenizer:
    """The tokenizer and chat template of one model folder."""

    def __init__(
        self, folder: ModelFolder, tokenizer: Tokenizer, fingerprint: str, *, num_threads: int
    ) -> None:
        self.fingerprint = fingerprint
        self.context_length = folder.context_length
        self.decoding = Decoding(tokenizer)
        self._tokenizer = tokenizer
        self._template = (
            ChatTemplate(folder, folder.chat_template) if folder.chat_template else None
        )
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")

    @classmethod
    def load(cls, path: Path, *, num_threads: int) -> PromptTokenizer:
        """Read a model folder; raises ``ConfigurationError`` naming what is wrong with it."""
        if not path.is_dir():
            raise ConfigurationError(
                f"--model {path}: there is no such folder; name a model folder"
            )
        folder = read_model_folder(path)
        fingerprint = tokenizer_fingerprint(path)
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise ConfigurationError(
                f"--model {path}: tokenizer.json cannot be loaded: {error}; restore the file"
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(folder, tokenizer, fingerprint, num_threads=num_threads)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be prompts."""
        return self._template is not None

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's token ids."""
        match prompt:
            case TokenPrompt(token_ids):
                return token_ids
            case TextPrompt(text):
                return await self.encode_text(text, add_special_tokens=True)
            case ChatPrompt():
                return await self._encode_chat(prompt)

    async def encode_text(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the token ids of a text."""
        return await self._run(
            len(text), lambda: self._encode(text, add_special_tokens=add_special_tokens)
        )

    async def aclose(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _encode_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        template = self._template
        if template is None:
            raise InvalidRequest(
                "chat: the model folder has no chat template; send text or token_ids instead",
                field="chat",
            )

        def render_and_encode() -> tuple[int, ...]:
            text = template.render(
                prompt.messages, add_generation_prompt=prompt.add_generation_prompt
            )
            return self._encode(text, add_special_tokens=False)

        size = sum(MESSAGE_CHARACTERS + len(message.content) for message in prompt.messages)
        return await self._run(size, render_and_encode)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # Unlike encode, encode_batch lets go of the interpreter lock.
        encodings = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return tuple(encodings[0].ids)

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        if size <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
