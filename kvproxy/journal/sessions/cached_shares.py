"""The share of the prompts of hits that the provider's cache would have reused."""

from collections import Counter
from collections.abc import Mapping, Sequence

from kvproxy.journal.reader import JournalReader
from kvproxy.journal.sessions.ledger import REPEATED, REUSABLE, WARMING

_LOST_PREFIXES = ("evicted", "expired", "moved", "unreported")


def cached_share_bounds(reader: JournalReader) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return bounds of the share of the prompt tokens of hits that the cache would have reused, by tenant, model, and layer."""
    tokens: dict[tuple[str, str], Counter[str]] = {}
    for tenant, model, result, count in reader.rows(
        "select tenant, model, result, sum(tokens) from prompt_tokens group by 1, 2, 3", []
    ):
        # Requests that warmed the cache show what the backend reuses, too.
        tokens.setdefault((tenant, model), Counter())[result.removeprefix(WARMING)] += int(count)
    prompts = Counter[tuple[str, str, str]]()
    for row in reader.totals("layer"):
        prompts[row.tenant, row.model, row.layer] += row.prompt_tokens
    shares = {}
    for (tenant, model, layer), total in prompts.items():
        known = tokens.get((tenant, model), Counter())
        least = most = 0.0
        for name, lost in ((REUSABLE, _LOST_PREFIXES), (REPEATED, (*_LOST_PREFIXES, "minimum"))):
            repeated = min(1.0, known.get(name + layer, 0) / max(1, total))
            bounds = _reused_share_bounds(known, lost)
            least, most = least + repeated * bounds[0], most + repeated * bounds[1]
        shares[tenant, model, layer] = min(1.0, least), min(1.0, most)
    return shares


def _reused_share_bounds(tokens: Mapping[str, int], lost: Sequence[str]) -> tuple[float, float]:
    """Return bounds of the share of repeated prefixes that the backend reused in requests that were no hits.

    `lost` names the causes that also lose the prefixes of hits.
    """
    reused, unreported = tokens.get("reused", 0), tokens.get("unreported", 0)
    total = reused + sum(tokens.get(cause, 0) for cause in lost)
    if not total:
        return float("reused" in tokens), 1.0
    return reused / total, (reused + unreported) / total
