"""Estimates the tokens of a request, before and without a report of the backend."""

from collections.abc import Iterator

from kvproxy.apis.api_request import BYTES_PER_TOKEN
from kvproxy.apis.json import Json, JsonMap, as_token_count, field

_FILE_TOKENS = 1000
"""Estimated tokens of an image or a file."""
_FILE_FIELDS = {
    "image": ("source",),
    "document": ("source",),
    "image_url": ("image_url",),
    "audio_url": ("audio_url",),
    "video_url": ("video_url",),
    "input_audio": ("input_audio",),
    "file": ("file",),
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_url", "file_id"),
    "computer_screenshot": ("image_url", "file_id"),
}
"""By the type of a part: the fields that contain a file or refer to one."""
_WITHOUT_FILES = ("text", "tool_use", "thinking", "input_text", "output_text")
"""Types of the most frequent parts without a file."""
_TEXT_SOURCES = ("text", "content")
"""Types of sources of a document that are text, or parts with their own types."""
_PARTS = ("content", "output", "source")
UNLIMITED_OUTPUT_TOKENS = 16_384
"""Tokens of a response to reserve money for, if the request has no limit."""
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CHOICES = ("n", "best_of")
_WITHOUT_OUTPUT = ("embeddings", "rerank", "score", "moderations", "classify", "pooling", "tokenize")
"""Last parts of paths whose responses have no generated tokens."""
_NOT_FOR_THE_MODEL = ("metadata", "user", "safety_identifier", "prompt_cache_key")
_FILE = "data:"


def has_output(path: str) -> bool:
    """Return whether the responses of a path have generated tokens. Embeddings, for example, have none."""
    return path.rpartition("/")[2] not in _WITHOUT_OUTPUT


def most_output_tokens(path: str, body: JsonMap) -> int:
    """Return the most tokens that a request allows for its response: `UNLIMITED_OUTPUT_TOKENS` without a limit."""
    if not has_output(path):
        return 0
    limits = (as_token_count(body.get(name)) for name in _OUTPUT_LIMITS)
    limit = next((limit for limit in limits if limit is not None), UNLIMITED_OUTPUT_TOKENS)
    prompts = body.get("prompt")
    # A list of numbers is one prompt.
    several = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    return limit * several * max(as_token_count(body.get(name)) or 1 for name in _CHOICES)


def weighted_size(content: Json, size: int) -> int:
    """Return a size that follows the tokens of a message or a part of one, given its size in bytes as JSON.

    A file, such as an image, weighs as much as a text with its estimated tokens.
    """
    for part, names in _files(content):
        size += BYTES_PER_TOKEN * _FILE_TOKENS - sum(_text_length(part[name]) for name in names)
    return max(0, size)


def has_file(content: Json) -> bool:
    """Return whether a message has a file, such as an image."""
    return next(_files(content), None) is not None


def _files(content: Json) -> Iterator[tuple[JsonMap, list[str]]]:
    """Yield the parts of a message that are files, with the names of their fields (see `_file_fields`)."""
    todo: list[Json] = [content]
    while todo:
        match todo.pop():
            case list() as items:
                # Each request repeats the whole conversation, so most parts must be passed over fast.
                todo += [item for item in items if isinstance(item, dict) and item.get("type") not in _WITHOUT_FILES]
            case dict() as part:
                if names := _file_fields(part):
                    yield part, names
                else:
                    todo += [part[name] for name in _PARTS if name in part and not isinstance(part[name], str)]


def _file_fields(part: JsonMap) -> list[str]:
    """Return the fields of a part that contain a file or refer to one; text has no such field."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _FILE_FIELDS:
        return []
    if field(part.get("source"), "type") in _TEXT_SOURCES:
        return []
    return [name for name in _FILE_FIELDS[kind] if part.get(name)]


def _text_length(value: Json) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(len(text) for text in value.values() if isinstance(text, str)) if isinstance(value, dict) else 0


def estimate_prompt_tokens(body: JsonMap) -> int:
    """Estimate the tokens of a prompt: one per four bytes of all strings and field names in the body, 1,000 per file."""
    total = 0
    todo: list[Json] = [{name: value for name, value in body.items() if name not in _NOT_FOR_THE_MODEL}]
    while todo:
        match todo.pop():
            case str() as text:
                total += (
                    _FILE_TOKENS
                    if text.startswith(_FILE)
                    else -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
                )
            case list() as items:
                todo += items
            case dict() as fields:
                total += sum(len(name) for name in fields) // BYTES_PER_TOKEN
                files = _file_fields(fields)
                total += _FILE_TOKENS if files else 0
                todo += [
                    _FILE if name == "data" and fields.get("type") != "text" else inner
                    for name, inner in fields.items()
                    if name not in files
                ]
            case int():
                # A prompt may be given as tokens.
                total += 1
    return total
