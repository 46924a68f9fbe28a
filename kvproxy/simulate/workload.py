"""Reads traces of real traffic as chains of blocks: Mooncake's, and logs of token ids."""

from pathlib import Path
from typing import Any

from kvproxy.blocks.digest import BlockHasher
from kvproxy.simulate.chains import ChainRequest
from kvproxy.simulate.errors import TraceError
from kvproxy.simulate.lines import parse_line

MOONCAKE_BLOCK = 512


def kind_of(path: Path) -> str:
    """`conformance`, `mooncake` or `tokens`, told from the first line.

    Raises:
        TraceError: it is none of them.
    """
    with path.open() as lines:
        line = parse_line(path, 1, lines.readline())
    for kind, field in (("conformance", "op"), ("mooncake", "hash_ids"), ("tokens", "tokens")):
        if field in line:
            return kind
    raise TraceError(f"{path}, line 1: expected a conformance header, a Mooncake line (hash_ids) or a line with tokens")


def read_chains(path: Path, block_size: int) -> tuple[list[ChainRequest], int]:
    """Every request of a Mooncake trace or a log of tokens, and the tokens in a block.

    Args:
        path: JSON lines, `{"input_length", "hash_ids"}` (one id names a prefix block of 512 tokens) or `{"tokens"}`.
        block_size: for logs of tokens.

    Raises:
        TraceError: a line cannot be read; the message names it.
    """
    mooncake = kind_of(path) == "mooncake"
    hasher = BlockHasher(seed="")
    ids: dict[bytes, int] = {}
    requests = []
    with path.open() as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            line = parse_line(path, number, text)
            try:
                if mooncake:
                    requests.append(_mooncake(line))
                else:
                    if not isinstance(line["tokens"], list):
                        raise TypeError("tokens is a list of ids")
                    chain = hasher.chain(line["tokens"], block_size)
                    blocks = tuple(ids.setdefault(digest, len(ids)) for digest in chain)
                    length = len(line["tokens"])
                    requests.append(ChainRequest(blocks, max(0, length - 1) // block_size, bool(length % block_size)))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise TraceError(f"{path}, line {number}: bad request ({error!r})") from None
    return requests, MOONCAKE_BLOCK if mooncake else block_size


def _mooncake(line: dict[str, Any]) -> ChainRequest:
    ids, length = tuple(int(id) for id in line["hash_ids"]), int(line["input_length"])
    full = min(len(ids), length // MOONCAKE_BLOCK)
    return ChainRequest(ids[:full], max(0, min(full, (length - 1) // MOONCAKE_BLOCK)), full < len(ids))
