"""Splits the names that gateways give to models into the host and the host's own name, and respells versions."""

import re
from collections.abc import Iterator
from types import MappingProxyType

# No prefix here is an organization of Hugging Face, whose models other servers also name so.
_HOSTS = MappingProxyType(
    {
        "azure": "azure",
        "azure_ai": "azure",
        "bedrock": "aws",
        "cerebras": "cerebras",
        "cohere": "cohere",
        "deepseek": "deepseek",
        "fireworks_ai": "fireworks",
        "gemini": "google",
        "groq": "groq",
        "minimax": "minimax",
        "mistral": "mistral",
        "moonshot": "moonshotai",
        "openrouter": "openrouter",
        "perplexity": "perplexity",
        "together_ai": "together",
        "vertex_ai": "google",
        "x-ai": "x-ai",
        "xai": "x-ai",
        "z-ai": "zai",
        "zai": "zai",
    }
)
"""Names in `genai-prices` of hosts, by the prefixes of LiteLLM and OpenRouter that name only this host."""
_RESOURCE = re.compile(r"^(?:publishers/[^/]+/)?models/")
_VERSION_DOT = re.compile(r"(?<=\d)\.(?=\d)")
# From version 4 on, the family precedes the version.
_VERSION_FIRST = re.compile(r"^claude-([4-9](?:-\d)?)-(opus|sonnet|haiku)(?![a-z])")
_SHORT_DATE = re.compile(r"-(\d\d)-(\d\d)$")


def host_prefixes(host: str) -> list[str]:
    """Return the prefixes that name a host of `genai-prices`."""
    return [prefix for prefix, name in _HOSTS.items() if name == host]


def split_host(model: str) -> tuple[str | None, str]:
    """Return the host that a model's name begins with, and the name without it; None without a host."""
    prefix, _, name = model.partition("/")
    host = _HOSTS.get(prefix.lower())
    own = model if host is None or not name else name.removeprefix("converse/")
    return (host if name else None), _RESOURCE.sub("", own)


def dashed_claude_name(name: str) -> str:
    """Return a name of a Claude model with dashes in the version, and the version after the family, as Anthropic has it."""
    return _VERSION_FIRST.sub(r"claude-\2-\1", _VERSION_DOT.sub("-", name)) if name.startswith("claude-") else name


def spellings(name: str) -> Iterator[str]:
    """Yield a name, and its other spellings: with the date 0709 for 07-09, and of Claude with the family first."""
    yield name
    yield from dict.fromkeys({_SHORT_DATE.sub(r"-\1\2", name), dashed_claude_name(name.lower())} - {name})
