"""What the service counts, in the text format of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


class Counter:
    """A number that only grows, for each combination of labels."""

    def __init__(self, name: str, title: str, labels: Sequence[str] = ()) -> None:
        self.name, self.title, self.labels = name, title, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, value: float = 1.0, **labels: str) -> None:
        """Add to the number of these labels."""
        key = tuple(labels[name] for name in self.labels)
        self._values[key] = self._values.get(key, 0.0) + value

    def render(self) -> str:
        """Return the lines of the text format."""
        values = (
            ("", dict(zip(self.labels, key, strict=True)), value)
            for key, value in sorted(self._values.items())
        )
        return _lines(self.name, self.title, "counter", values)


class Histogram:
    """How often values fell below each bound."""

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
        counts = zip(self._bounds, self._counts, strict=True)
        values: list[tuple[str, dict[str, str], float]]
        values = [("_bucket", {"le": _number(bound)}, count) for bound, count in counts]
        values += [("_sum", {}, self._sum), ("_count", {}, self._counts[-1])]
        return _lines(self.name, self.title, "histogram", values)


def gauge(name: str, title: str, value: float, labels: Mapping[str, str] | None = None) -> str:
    """Return the lines of a number that goes up and down."""
    return _lines(name, title, "gauge", [("", labels or {}, value)])


def _lines(
    name: str, title: str, kind: str, values: Iterable[tuple[str, Mapping[str, str], float]]
) -> str:
    lines = [f"# HELP {name} {title}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in values:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{suffix}{f'{{{inside}}}' if inside else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:.12g}"
