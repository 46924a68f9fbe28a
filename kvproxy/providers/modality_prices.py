"""Prices of requests with audio and image tokens, and of inference in one region."""

from kvproxy.apis.modalities import Part, read_modalities, region_of
from kvproxy.providers.regional_prices import region_factor
from kvproxy.settings.journal import PriceSettings


def of_modalities(price: PriceSettings, modalities: str) -> PriceSettings | None:
    """Return the mean prices of a request's tokens, given its audio and image tokens as in `modalities_text`, and its region.

    None if the price of its audio is unknown. Image tokens without a price of their own cost as much as text, and inference in
    a region without a known price as much as in any.
    """
    price = price.scaled(region_factor(region_of(modalities)) or 1.0)
    means = {"input": price.input, "cached": price.price_of_reuse, "output": price.output}
    texts = dict(means)
    for part in read_modalities(modalities):
        own = _price_of_part(price, part)
        if own is None:
            return None
        means[part.kind] += part.tokens / part.total * (own - texts[part.kind])
    # Audio is in the tokens that are written to the provider's cache as often as in other ones.
    ratio = means["input"] / price.input if price.input else 1.0
    writes = {"write_5m": price.price_of_5m_write * ratio, "write_1h": price.price_of_1h_write * ratio}
    return price.model_copy(update=means | writes)


def _price_of_part(price: PriceSettings, part: Part) -> float | None:
    if part.kind == "output":
        return price.audio_output if part.modality == "audio" else _first(price.image_output, price.output)
    own = price.audio_input if part.modality == "audio" else _first(price.image_input, price.input)
    if own is None or part.kind == "input":
        return own
    # Providers reuse audio and images at the ratio of text.
    return own * price.price_of_reuse / price.input if price.input else own


def _first(own: float | None, default: float) -> float:
    return default if own is None else own
