from kvproxy.settings.journal import PriceSettings

MILLION = 1_000_000


def input_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the price of a prompt; `written_5m` and `written_1h` are tokens written to the provider's cache."""
    plain = max(0, prompt - reused - written_5m - written_1h)
    paid = (
        reused * price.price_of_reuse
        + written_5m * price.price_of_5m_write
        + written_1h * price.price_of_1h_write
        + plain * price.input
    )
    return paid / MILLION


def storage_price(price: PriceSettings, token_hours: float) -> float:
    """Return the price of storing prompt tokens; `token_hours` are tokens times hours."""
    return token_hours * price.storage / MILLION


def lost_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the price of losing one token: the mean price of a computed token minus the price of a reused one."""
    computed = prompt - reused
    if computed <= 0:
        return 0.0
    paid = input_price(price, prompt, reused, written_5m, written_1h) - reused * price.price_of_reuse / MILLION
    return paid / computed - price.price_of_reuse / MILLION
