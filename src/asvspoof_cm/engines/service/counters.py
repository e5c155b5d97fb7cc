"""What the service counts, in the text format of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["Counter", "Histogram", "gauge"]


class Counter:
    """A number that only grows, for each combination of labels.

    Example:
        >>> requests = Counter("requests_total", "Requests.", ("status",))
        >>> requests.add(status="200")
        >>> print(requests.render(), end="")
        # HELP requests_total Requests.
        # TYPE requests_total counter
        requests_total{status="200"} 1
    """

    def __init__(self, name: str, title: str, labels: Sequence[str] = ()) -> None:
        self.name, self.title, self.labels = name, title, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, value: float = 1.0, **labels: str) -> None:
        """Add to the number of these labels."""
        key = tuple(labels[name] for name in self.labels)
        self._values[key] = self._values.get(key, 0.0) + value

    def render(self) -> str:
        """Return the lines of the text format."""
        lines = _head(self.name, self.title, "counter")
        for key, value in sorted(self._values.items()):
            labels = dict(zip(self.labels, key, strict=True))
            lines.append(f"{self.name}{_braces(labels)} {_number(value)}")
        return "\n".join(lines) + "\n"


class Histogram:
    """How often values fell below each bound.

    Example:
        >>> sizes = Histogram("batch_size", "Requests in a batch.", (1, 8))
        >>> sizes.observe(3)
        >>> print(sizes.render(), end="")
        # HELP batch_size Requests in a batch.
        # TYPE batch_size histogram
        batch_size_bucket{le="1"} 0
        batch_size_bucket{le="8"} 1
        batch_size_bucket{le="+Inf"} 1
        batch_size_sum 3
        batch_size_count 1
    """

    def __init__(self, name: str, title: str, bounds: Sequence[float]) -> None:
        self.name, self.title = name, title
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._sum += value
        for k, bound in enumerate(self._bounds):
            self._counts[k] += value <= bound

    def render(self) -> str:
        """Return the lines of the text format."""
        lines = _head(self.name, self.title, "histogram")
        for bound, count in zip(self._bounds, self._counts, strict=True):
            lines.append(f"{self.name}_bucket{_braces({'le': _number(bound)})} {count}")
        lines.append(f"{self.name}_sum {_number(self._sum)}")
        lines.append(f"{self.name}_count {self._counts[-1]}")
        return "\n".join(lines) + "\n"


def gauge(name: str, title: str, value: float, labels: Mapping[str, str] | None = None) -> str:
    """Return the lines of a number that goes up and down.

    Example:
        >>> print(gauge("queue", "Requests that wait.", 2), end="")
        # HELP queue Requests that wait.
        # TYPE queue gauge
        queue 2
    """
    return "\n".join(
        [*_head(name, title, "gauge"), f"{name}{_braces(labels or {})} {_number(value)}\n"]
    )


def _head(name: str, title: str, kind: str) -> list[str]:
    return [f"# HELP {name} {title}", f"# TYPE {name} {kind}"]


def _braces(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def _number(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:.12g}"
