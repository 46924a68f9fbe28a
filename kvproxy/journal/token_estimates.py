"""Estimates the tokens of a request, before and without a report of the backend."""

from kvproxy.apis.api_request import BYTES_PER_TOKEN
from kvproxy.apis.json import Json, JsonMap, as_token_count

_IMAGE_TOKENS = 1000
"""Estimated tokens of an image or a file."""
UNLIMITED_OUTPUT_TOKENS = 16_384
"""Tokens of a response to reserve money for, if the request has no limit."""
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CHOICES = ("n", "best_of")
_WITHOUT_OUTPUT = ("embeddings", "rerank", "score", "moderations", "classify", "pooling", "tokenize")
"""Last parts of paths whose responses have no generated tokens."""
_NOT_FOR_THE_MODEL = ("metadata", "user", "safety_identifier", "prompt_cache_key")
_FILE = "data:"


def most_output_tokens(path: str, body: JsonMap) -> int:
    """Return the most tokens that a request allows for its response: `UNLIMITED_OUTPUT_TOKENS` without a limit."""
    if path.rpartition("/")[2] in _WITHOUT_OUTPUT:
        return 0
    limits = (as_token_count(body.get(name)) for name in _OUTPUT_LIMITS)
    limit = next((limit for limit in limits if limit is not None), UNLIMITED_OUTPUT_TOKENS)
    prompts = body.get("prompt")
    # A list of numbers is one prompt.
    several = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    return limit * several * max(as_token_count(body.get(name)) or 1 for name in _CHOICES)


def estimate_prompt_tokens(body: JsonMap) -> int:
    """Estimate the tokens of a prompt: one per four bytes of all strings and field names in the body."""
    total = 0
    todo: list[Json] = [{name: value for name, value in body.items() if name not in _NOT_FOR_THE_MODEL}]
    while todo:
        match todo.pop():
            case str() as text:
                total += (
                    _IMAGE_TOKENS
                    if text.startswith(_FILE)
                    else -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
                )
            case list() as items:
                todo += items
            case dict() as fields:
                total += sum(len(name) for name in fields) // BYTES_PER_TOKEN
                # The source of an image in Anthropic's form.
                todo += [_FILE if name == "data" else inner for name, inner in fields.items()]
            case int():
                # A prompt may be given as tokens.
                total += 1
    return total
