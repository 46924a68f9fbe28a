"""A prompt as a chain of hashes: two prompts with an equal hash have an equal prefix."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvproxy.journal.request_regions import QUESTIONS, Regions

_HEAD = ("model", "cache_salt", "tools", "system", "instructions", "tool_choice", "thinking")
"""Regions that precede the messages in the chain, because a change of one of them changes the whole prefix."""
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class PromptChain:
    """The regions of a prompt (see `Regions`) in the order of a chat template.

    Attributes:
        sizes: bytes of each region.
        prefixes: for each region, the hash of the prompt from its start to the end of the region.
        conversation: for each region, the hash from region `first` to the end of the region; None for regions before `first`.
        first: index of the first message that is not a system message.
    """

    names: tuple[str, ...]
    digests: tuple[bytes, ...]
    sizes: tuple[int, ...]
    prefixes: tuple[int, ...]
    conversation: tuple[int | None, ...]
    first: int

    def estimate_tokens(self, num_regions: int, prompt_tokens: int, known: tuple[int, int] = (0, 0)) -> int:
        """Estimate the number of tokens of the first `num_regions` regions, in proportion to their bytes.

        `known` is a number of leading regions, and their known number of tokens.
        """
        regions, tokens = known
        before, total = sum(self.sizes[regions:num_regions]), sum(self.sizes[regions:])
        return tokens + (max(0, prompt_tokens - tokens) * before // total if total else 0)

    def assistant_indexes(self) -> list[int]:
        return [index for index, name in enumerate(self.names) if _role(name) == "assistant"]


def chain_of(regions: Regions, scope: str) -> PromptChain:
    """Return the hash chain of a request's prompt. Chains of different scopes, such as tenants, have no hash in common."""
    by_name = {name: index for index, name in enumerate(regions.names)}
    order = [by_name[name] for name in _HEAD if name in by_name]
    order += [index for index, name in enumerate(regions.names) if name.partition("[")[0] in QUESTIONS]
    names = tuple(regions.names[index] for index in order)
    digests = tuple(regions.digests[index] for index in order)
    sizes = tuple(regions.sizes[index] for index in order) if regions.sizes else (1,) * len(order)
    messages = (index for index, name in enumerate(names) if name.partition("[")[0] in QUESTIONS)
    first = next((index for index in messages if _role(names[index]) not in _INSTRUCTIONS), len(names))
    conversation = (*(None,) * first, *_hashes(digests[first:], f"conversation {scope}"))
    return PromptChain(names, digests, sizes, tuple(_hashes(digests, scope)), conversation, first)


def _hashes(digests: Sequence[bytes], scope: str) -> list[int]:
    start = hashlib.blake2b(scope.encode("utf-8", "replace"), digest_size=8).digest()
    chained = accumulate(
        digests, lambda before, each: hashlib.blake2b(before + each, digest_size=8).digest(), initial=start
    )
    return [int.from_bytes(digest) for digest in chained][1:]


def _role(name: str) -> str:
    return name.partition(" ")[2]
