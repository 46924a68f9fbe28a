"""Groups of metrics with a common prefix, which are set from statistics."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric, or a group of metrics with the prefix `name`: `members` has the help text of each, by the rest of its name."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "group"]
    text: str
    labels: tuple[str, ...]
    members: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"{self.name}_{member}" for member in self.members] or [self.name]


class MetricGroup(Collector):
    """Metrics with a common prefix and common labels. Names that end in `_total` are counters, others are gauges."""

    def __init__(self, description: MetricDescription) -> None:
        self._description = description
        self._values: dict[tuple[str, ...], Mapping[str, float | None]] = {}

    def set(self, values: "DataclassInstance | Mapping[str, float | None] | float | None", *labels: str) -> None:
        """Set the values for these labels, by metric name without prefix and `_total`. Other names are ignored.

        The value of a single metric is a number. An unknown value is None, and absent.
        """
        if values is None or isinstance(values, int | float):
            values = {"": values}
        self._values[labels] = values if isinstance(values, Mapping) else asdict(values)

    def clear(self) -> None:
        self._values.clear()

    def collect(self) -> Iterator[Metric]:
        description = self._description
        members = description.members or {"": description.text}
        for (member, text), name in zip(members.items(), description.names, strict=True):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=description.labels)
            for labels, values in self._values.items():
                value = values.get(member.removesuffix("_total"))
                if value is not None:
                    family.add_metric(labels, value)
            yield family
