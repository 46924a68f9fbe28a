"""Counts the tokens of logged requests with the package `tokenizers` alone: no torch, no transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.demo import DEMO, model_path
from kvproxy.errors import InvalidRequest, SettingsError

_Render = Callable[[Sequence[Any], Sequence[Any]], str]


class PromptEncoder(Protocol):
    async def encode(self, source: PromptInput) -> Sequence[int]: ...

    async def encode_output(self, text: str) -> Sequence[int]: ...


def load_log_tokenizer(name: str | None) -> PromptEncoder:
    """Load a tokenizer; None is the demonstration model's. Raises SettingsError.

    A folder needs `tokenizer.json`, and a chat template for conversations. Other names are loaded by transformers.
    """
    if name is None or name == DEMO:
        # The template of the demonstration model has no tools, because that model calls no tools.
        return LogTokenizer(model_path(), render_conversation)
    folder = Path(name).expanduser()
    if (folder / "tokenizer.json").is_file():
        template = _read_template(folder)
        if template is not None:
            return LogTokenizer(folder, template)
    from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer

    return LocalTokenizer(name)


class LogTokenizer:
    """A tokenizer of a folder, and a function that renders messages and tools as the model's prompt."""

    def __init__(self, folder: Path, render: _Render) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            # The package raises Exception itself.
            raise SettingsError(f"cannot load the tokenizer in {folder} ({error}): correct --tokenizer") from None
        self._render = render

    async def encode(self, source: PromptInput) -> Sequence[int]:
        match source:
            case Conversation():
                text = self._render(source.messages, source.tools)
                return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
            case str():
                return list(self._tokenizer.encode(source).ids)
        return source

    async def encode_output(self, text: str) -> Sequence[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def render_conversation(messages: Sequence[Any], tools: Sequence[Any]) -> str:
    """Render tools, messages, and tool calls in the order of most chat templates, with the demonstration model's marks."""
    parts = [f"<|system|>{_json(list(tools))}<|end|>"] if tools else []
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else "" if content is None else _json(content)
        calls = message.get("tool_calls")
        parts.append(f"<|{message.get('role')}|>{text}{_json(calls) if calls else ''}<|end|>")
    return "".join(parts) + "<|assistant|>"


def _json(value: Any) -> str:
    # The order of properties stays, as in the `tojson` of chat templates.
    return json.dumps(value, ensure_ascii=False)


def _read_template(folder: Path) -> _Render | None:
    """Return a function that renders the chat template of a folder; None without a template or without jinja2."""
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) if config_file.is_file() else {}
    template_file = folder / "chat_template.jinja"
    source = template_file.read_text() if template_file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None

    def fail(message: str) -> None:
        raise TemplateError(message)

    # The environment of transformers' `apply_chat_template`.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = fail
    template = environment.from_string(source)
    marks = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def render(messages: Sequence[Any], tools: Sequence[Any]) -> str:
        try:
            return template.render(
                messages=list(messages), tools=list(tools) or None, add_generation_prompt=True, **marks
            )
        except (TemplateError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"the chat template rejects the messages: {error}") from None

    return render


def _content(mark: Any) -> str:
    content = mark.get("content") if isinstance(mark, dict) else mark
    return content if isinstance(content, str) else ""
