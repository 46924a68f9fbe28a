from kvproxy.settings.journal import PriceSettings

MILLION = 1_000_000


def input_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the price of a prompt. Tokens that are neither reused nor written cost the input price."""
    plain = max(0, prompt - reused - written_5m - written_1h)
    paid = reused * price.of_reuse + written_5m * price.of_5m + written_1h * price.of_1h + plain * price.input
    return paid / MILLION


def storage_price(price: PriceSettings, token_hours: float) -> float:
    """Return the price of the storage of prompt tokens; `token_hours` are tokens times hours."""
    return token_hours * price.storage / MILLION


def lost_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the mean price of a computed prompt token, minus the price of its reuse; 0 if all tokens were reused."""
    computed = prompt - reused
    if computed <= 0:
        return 0.0
    paid = input_price(price, prompt, reused, written_5m, written_1h) - reused * price.of_reuse / MILLION
    return paid / computed - price.of_reuse / MILLION
