"""The ledger of prompt tokens: reused, or lost to one cause, with the money that reuse would have saved."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvproxy.journal.sessions.ledger import CAUSES, LOADED, STORED_TOKEN_HOURS, UNREPORTED, WARMING
from kvproxy.settings.journal import PriceSettings, price_lost_per_token, storage_price


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Prompt tokens with one `result`: `reused`, or a cause from `CAUSES`.

    Attributes:
        share: fraction of all prompt tokens.
        cost: money that reuse of these tokens would have saved; 0 for `reused` and `new`, None for `unreported` and without a
            price.
    """

    result: str
    tokens: int
    share: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class DiagnosisRow:
    """Turns with one diagnosis of the provider.

    Attributes:
        agreed, disagreed: turns whose change, by our comparison, is and is not the one that the provider names.
    """

    diagnosis: str
    turns: int
    agreed: int
    disagreed: int


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """Prompt tokens by result.

    Attributes:
        prompt_tokens: prompt tokens of clients' requests, the sum of the rows.
        written_5m, written_1h: tokens written to the provider's cache, also by requests that warmed it.
        storage: price of storing reused tokens in the provider's cache.
        loaded: reused tokens that engines loaded from media besides their GPU, by medium, where the reuse was predicted.
        unread_writes: tokens written to the provider's cache that no later request has read so far; None if unknown.
        warming: prompt tokens of requests that warmed the cache, such as keep-warm requests, which no row contains.
        diagnoses: the provider's own explanations of recorded requests, most frequent first.
    """

    prompt_tokens: int
    written_5m: int
    written_1h: int
    rows: list[LedgerRow]
    currency: str
    storage: float = 0.0
    loaded: dict[str, int] = field(default_factory=dict)
    unread_writes: int | None = None
    diagnoses: list[DiagnosisRow] = field(default_factory=list)
    warming: int = 0


@dataclass(frozen=True, slots=True)
class RecordedLoss:
    """Lost tokens of a request by cause, and what each would have saved if it had been reused."""

    tokens: Mapping[str, int]
    price: float


def ledger_of(
    groups: Iterable[tuple[PriceSettings | None, Mapping[str, int], Sequence[RecordedLoss]]], currency: str
) -> LedgerReport:
    """Return a ledger from groups of requests with one price: numbers of tokens by result.

    A result is `reused`, one of `CAUSES`, `written_5m`, `written_1h`, `loaded_MEDIUM`, or `STORED_TOKEN_HOURS`; for
    requests that warmed the cache, it begins with `WARMING`. Tokens of recorded losses have their own price, and other lost
    tokens the mean price of the group.
    """
    storage = 0.0
    tokens: Counter[str] = Counter()
    costs: dict[str, float] = {}
    for price, group, recorded in groups:
        tokens.update(group)
        if price is None:
            continue
        counts = Counter(group)
        total = sum(counts[result] for result in ("reused", *CAUSES))
        storage += storage_price(price, counts[STORED_TOKEN_HOURS])
        above = price_lost_per_token(price, total, counts["reused"], counts["written_5m"], counts["written_1h"])
        for result in ("reused", *CAUSES):
            if result in ("reused", "new"):
                costs.setdefault(result, 0.0)
                continue
            if not counts[result] or result == UNREPORTED:
                continue
            own = [(loss.tokens.get(result, 0), loss.price) for loss in recorded]
            rest = max(0, counts[result] - sum(count for count, _ in own))
            costs[result] = costs.get(result, 0.0) + above * rest + sum(count * money for count, money in own)
    total = sum(tokens[result] for result in ("reused", *CAUSES))
    rows = [
        LedgerRow(result, tokens[result], tokens[result] / total, costs.get(result))
        for result in ("reused", *CAUSES)
        if tokens[result]
    ]
    loaded = {
        result.removeprefix(LOADED): count for result, count in tokens.items() if result.startswith(LOADED) and count
    }
    short, long = (tokens[name] + tokens[WARMING + name] for name in ("written_5m", "written_1h"))
    warming = sum(tokens[WARMING + result] for result in ("reused", *CAUSES))
    return LedgerReport(total, short, long, rows, currency, storage, loaded, warming=warming)
