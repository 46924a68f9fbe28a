"""Counts answers at the price of two additions: to find a metric by its labels would take as long as all the rest of a hit."""

from prometheus_client import Counter, Histogram

from kvproxy.flow.outcome import Layer


class Answered:
    """The two metrics of an answer, remembered for each kind of answer.

    Args:
        requests: by endpoint, layer and status.
        seconds: by layer.
    """

    def __init__(self, requests: Counter, seconds: Histogram) -> None:
        self._requests = requests
        self._seconds = seconds
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def __call__(self, endpoint: str, layer: Layer, status: int, seconds: float) -> None:
        """Count one answer, and the seconds until it began."""
        kind = endpoint, layer, status
        known = self._known.get(kind)
        if known is None:
            requests = self._requests.labels(endpoint, layer, str(status))
            known = self._known[kind] = requests, self._seconds.labels(layer)
        known[0].inc()
        known[1].observe(seconds)
