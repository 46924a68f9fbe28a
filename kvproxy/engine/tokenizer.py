"""Text and chats to token ids and back, through the model's own tokenizer and chat template."""

from collections.abc import Sequence
from typing import Any

from kvproxy.errors import InvalidRequest


class ChatTokenizer:
    """A Hugging Face tokenizer.

    Args:
        tokenizer: a `PreTrainedTokenizerBase`.
        eos_ids: ids that end an answer.
    """

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_ids = eos_ids

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the model expects around it."""
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """Ids of a conversation up to where the assistant speaks.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
        """
        if self._tokenizer.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template: send the prompt to /v1/completions, or serve an instruct model",
                param="messages",
            )
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                [_flat(message) for message in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

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
