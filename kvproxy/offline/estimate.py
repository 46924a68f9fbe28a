"""What both caches would make of a log: the estimate that `kvproxy estimate` prints."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kvproxy.exchange import Match
from kvproxy.index.evaluation.wilson import wilson
from kvproxy.offline.log_replay import Replayed, has_answers, replay, said
from kvproxy.offline.prefix_reuse import PrefixEstimate, Spelled, estimate_prefixes, spell
from kvproxy.offline.request_log import LoggedRequest
from kvproxy.settings import Settings
from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class WrongShare:
    """How much of what is served for similar questions is wrong.

    Attributes:
        compared: answers that were compared with the log's own; 0 where the log has none.
        wrong: of them.
        expected: the mean of what the policy itself thinks of each.
    """

    compared: int
    wrong: int
    expected: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the share; None where nothing was compared."""
        return wilson(self.wrong, self.compared) if self.compared else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What both caches would make of a log.

    Attributes:
        requests: how many there are.
        exact, similar, forwarded: how many an equal request answers, a similar question, and the engine.
        similar_range: the least and the most in any replay: they depend on what the policy explores.
        uncacheable: of those forwarded, how many are never cached.
        learned: the log has answers, and the policy learned from them.
        wrong: of the similar ones.
        prefix: what the engine's prefix cache reuses of what is forwarded.
        prefix_alone: what it would reuse if no response were cached.
        unread: forwarded requests whose prompt cannot be read here.
    """

    requests: int
    exact: int
    similar: int
    similar_range: tuple[int, int]
    forwarded: int
    uncacheable: int
    learned: bool
    wrong: WrongShare
    prefix: PrefixEstimate
    prefix_alone: PrefixEstimate
    unread: int


async def estimate(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    tokenizer: LocalTokenizer,
    block_size: int,
    sizes: Sequence[int] | None,
    progress: Progress = lambda what, share: None,
    draws: int = 1,
) -> Estimate:
    """Replay a log, and count.

    Args:
        settings: of the proxy that would answer.
        tokenizer: the served model's.
        block_size: tokens in a block of the engine's prefix cache.
        sizes: of its pool, in blocks; None for a range that fits the log.
        progress: told what is done, and the share of it.
        draws: replays of a log with answers, in each of which the policy explores others; what is told is of the one in
            the middle.

    Raises:
        SettingsError: the embedder or the verifier cannot be used.
    """
    replays = await _replays(requests, settings, progress, draws)
    played = replays[len(replays) // 2]
    spelled: list[Spelled | None] = []
    for number, each in enumerate(played, 1):
        spelled.append(await spell(tokenizer, each.asked, said(each.logged)))
        progress("tokenising", number / len(played))
    reached = [text for each, text in zip(played, spelled, strict=True) if _reached(each)]
    readable = [text for text in reached if text is not None]
    prefix = estimate_prefixes(readable, block_size, sizes, lambda share: progress("simulating", share / 2))
    alone = estimate_prefixes(
        [text for text in spelled if text is not None],
        block_size,
        [point.blocks for point in prefix.points],
        lambda share: progress("simulating", 0.5 + share / 2),
    )
    layers = Counter(each.exchange.layer if each.exchange is not None else "bypass" for each in played)
    return Estimate(
        requests=len(played),
        exact=layers["exact"],
        similar=layers["semantic"],
        similar_range=(_similar(replays[0]), _similar(replays[-1])),
        forwarded=len(reached),
        uncacheable=sum(each.exchange is None or each.exchange.forward_reason == "bypass" for each in played),
        learned=has_answers(requests),
        wrong=_wrong(played),
        prefix=prefix,
        prefix_alone=alone,
        unread=len(reached) - len(readable),
    )


async def _replays(
    requests: Sequence[LoggedRequest], settings: Settings, progress: Progress, draws: int
) -> list[list[Replayed]]:
    """Replays of a log, those that answer the fewest similar questions first."""
    count = draws if has_answers(requests) else 1
    found = []
    for draw in range(count):

        def told(share: float, draw: int = draw) -> None:
            progress("replaying", (draw + share) / count)

        found.append(await replay(requests, settings, told, Random(draw).random))
    return sorted(found, key=_similar)


def _similar(played: Sequence[Replayed]) -> int:
    return sum(each.exchange is not None and each.exchange.layer == "semantic" for each in played)


def _reached(each: Replayed) -> bool:
    return each.exchange is None or each.exchange.layer not in ("exact", "semantic")


def _wrong(played: Sequence[Replayed]) -> WrongShare:
    hits = [each.exchange.hit for each in played if each.exchange is not None and each.exchange.hit is not None]
    matches = [hit.match for hit in hits if hit.match is not None]
    risks = [risk for match in matches if (risk := _risk(match)) is not None]
    compared = [each.right for each in played if each.right is not None]
    expected = sum(risks) / len(risks) if risks else None
    return WrongShare(len(compared), compared.count(False), expected)


def _risk(match: Match) -> float | None:
    if match.error is not None:
        return match.error
    return None if match.score is None else 1.0 - match.score
