from kvproxy.settings.journal import PriceSettings

MILLION = 1_000_000


def input_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the price of a prompt in the prices' currency.

    Args:
        prompt: number of tokens in the prompt.
        reused: number of these tokens that the provider read from its cache.
        written_5m, written_1h: number of tokens that the provider wrote to its cache, for five minutes and for one hour.
    """
    plain = max(0, prompt - reused - written_5m - written_1h)
    paid = (
        reused * price.price_of_reuse
        + written_5m * price.price_of_5m_write
        + written_1h * price.price_of_1h_write
        + plain * price.input
    )
    return paid / MILLION


def storage_price(price: PriceSettings, token_hours: float) -> float:
    """Return the price of storing tokens in the provider's cache. `token_hours` is the number of tokens times hours."""
    return token_hours * price.storage / MILLION


def price_lost_per_token(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the mean amount that reuse would save per computed token. Arguments are those of `input_price`."""
    computed = prompt - reused
    if computed <= 0:
        return 0.0
    paid = input_price(price, prompt, reused, written_5m, written_1h) - reused * price.price_of_reuse / MILLION
    return paid / computed - price.price_of_reuse / MILLION
