"""Text and chats to token ids and back, through the model's own tokenizer and chat template."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from threading import Lock
from typing import Any

from kvproxy.engine.text.tool_calls import ToolCallFormat, learn_tool_call_format
from kvproxy.errors import InvalidRequest

_COMPOSED = 4
"""More bytes than one byte can stand for after Unicode's composition (NFC), where 7 become 2 at the most."""


def max_token_bytes(tokenizer: Any) -> int | None:
    """Most bytes of text that one token covers; None where that cannot be told exactly.

    It can be told of byte-level BPE, which loses no byte: every character of a token's name is one byte. Normalizers and
    pre-tokenizers that may drop text, and special tokens that take the blanks around them, make any number wrong.

    Args:
        tokenizer: a `PreTrainedTokenizerBase`.
    """
    if not tokenizer.is_fast:
        return None
    backend = tokenizer.backend_tokenizer
    composes = _parts(backend.normalizer, "normalizers") == [{"type": "NFC"}]
    if type(backend.model).__name__ != "BPE" or not (composes or backend.normalizer is None):
        return None
    *splits, last = _parts(backend.pre_tokenizer, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel" or not all(_keeps_text(split) for split in splits):
        return None
    added = tokenizer.added_tokens_decoder.values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    names = tokenizer.get_vocab()
    longest = max((*map(len, names), *(len(token.content.encode()) for token in added)))
    return longest * (_COMPOSED if composes else 1)


def _keeps_text(step: dict[str, Any]) -> bool:
    return (step.get("type") == "Split" and step.get("behavior") != "Removed") or step.get("type") in (
        "Digits",
        "ByteLevel",
    )


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which may be a sequence of them."""
    if component is None:
        return []
    state: dict[str, Any] = json.loads(component.__getstate__())
    steps: list[dict[str, Any]] = state[name] if state.get("type") == "Sequence" else [state]
    return steps


CheckLength = Callable[[int], None]
"""Raises an error for a prompt that has at least so many tokens."""


def _any_length(at_least: int) -> None:
    """Every prompt is welcome."""


class ChatTokenizer:
    """A Hugging Face tokenizer, to be used from several threads.

    Args:
        tokenizer: a `PreTrainedTokenizerBase`.
        eos_ids: ids that end an answer.
    """

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_ids = eos_ids
        self._longest = max_token_bytes(tokenizer)
        # Fast tokenizers are safe across threads as long as nobody changes how they cut and pad, which the first call may do
        # (a tokenizer.json can say so). The slow ones are Python, and promise nothing.
        self._turn = nullcontext() if tokenizer.is_fast else Lock()
        self._ids("")

    def encode(self, text: str, param: str = "prompt", check: CheckLength = _any_length) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the model expects around it.

        Args:
            text: the prompt.
            param: the request's field, for errors.
            check: told how many tokens the text has at least, before it is tokenised.

        Raises:
            InvalidRequest: the text is not valid Unicode.
            KvproxyError: `check` raised it.
        """
        self._check_text(text, param, check)
        return self._ids(text)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        check: CheckLength = _any_length,
    ) -> list[int]:
        """Ids of a conversation up to where the assistant speaks.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
            KvproxyError: `check` raised it, see `encode`.
        """
        text = self._render(messages, tools)
        # The template may drop text, so what it wrote is what counts.
        self._check_text(text, "messages", check)
        return self._ids(text, add_special_tokens=False)

    def _render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> str:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template: send the prompt to /v1/completions, or serve an instruct model",
                param="messages",
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                [_flat(message) for message in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None
        return text

    def _check_text(self, text: str, param: str, check: CheckLength) -> None:
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{param} holds half of a character (a lone surrogate): send whole ones", param=param
            ) from None
        if self._longest is not None:
            check(-(-size // self._longest))

    def _ids(self, text: str, **options: Any) -> list[int]:
        with self._turn:
            ids: list[int] = self._tokenizer.encode(text, **options)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._decode(list(ids))

    @cached_property
    def _decode(self) -> Callable[[list[int]], str]:
        """What decodes: the compiled part alone where transformers adds nothing, since what it does around that takes longer."""
        from transformers import PreTrainedTokenizerFast

        tokenizer, kind = self._tokenizer, type(self._tokenizer)
        plain = (
            isinstance(tokenizer, PreTrainedTokenizerFast)
            and kind.decode is PreTrainedTokenizerFast.decode
            and kind._decode is PreTrainedTokenizerFast._decode
            and not tokenizer.clean_up_tokenization_spaces
        )
        return partial((tokenizer.backend_tokenizer if plain else tokenizer).decode, skip_special_tokens=True)

    @cached_property
    def call_form(self) -> ToolCallFormat | None:
        """How the chat template writes calls of tools; None where it cannot."""
        if self._tokenizer.chat_template is None:
            return None

        def render(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], speaks: bool) -> str:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools), add_generation_prompt=speaks, tokenize=False
            )
            return text

        added = self._tokenizer.added_tokens_decoder.items()
        return learn_tool_call_format(render, {token.content: number for number, token in added if token.special})

    def for_grammars(self, vocabulary: int) -> Any:
        """The same tokenizer as llguidance has it.

        Raises:
            InvalidRequest: it is none of Hugging Face's fast ones.
        """
        from llguidance.hf import from_tokenizer

        if not self._tokenizer.is_fast:
            raise InvalidRequest(
                "this model's tokenizer is written in Python, so answers cannot be held to a schema: leave it out",
                param="response_format",
            )
        return from_tokenizer(self._tokenizer, vocabulary, sorted(self.eos_ids) or None)

    def token_text(self, token: int) -> str:
        """Text of one token, special tokens included."""
        text: str = self._tokenizer.decode([token])
        return text


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose list of text parts is one text, which is what chat templates take."""
    content = message.get("content")
    if not isinstance(content, list):
        return message | {"content": content or ""}
    if any(part.get("type") != "text" for part in content):
        raise InvalidRequest(
            "the embedded engine takes text only: send text parts, or use --upstream", param="messages"
        )
    return message | {"content": "".join(part["text"] for part in content)}
