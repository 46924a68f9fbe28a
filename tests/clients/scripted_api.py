"""The state of a scripted API."""

from dataclasses import dataclass, field
from typing import Any

from tests.clients.agent_script import Script
from tests.clients.prompt_cache import PromptCache, PromptUsage


@dataclass(slots=True)
class ScriptedApi:
    """Answers requests by a script, and bills their prompts.

    Attributes:
        pause: seconds after the first event of each stream.
        bodies: bodies of the requests that create a response.
        usages: prompt tokens of each answered request, without embeddings.
        errors: messages of the refused requests.
    """

    script: Script
    pause: float = 0.0
    cache: PromptCache = field(default_factory=PromptCache)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    usages: list[PromptUsage] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _count: int = 0
