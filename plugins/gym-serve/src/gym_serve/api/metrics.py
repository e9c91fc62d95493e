"""What Prometheus reads: requests, tokens, times, and the figures of the engine. No label tells whose request it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gym_serve.contract import Usage

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics(Collector):
    """The figures of one server."""

    def __init__(self, routes: Callable[[], set[str]], engine: Callable[[], Mapping[str, float]]) -> None:
        """Count requests by the known routes; figures of the engine are asked when they are read."""
        self._routes, self._engine = routes, engine
        self.registry = CollectorRegistry()
        self._requests = Counter("gym_requests", "Requests that are over.", ["path", "status"], registry=self.registry)
        self._seconds = Histogram(
            "gym_request_seconds",
            "From the head of a request to its end.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "gym_time_to_first_token_seconds", "Until the first token.", buckets=SECONDS, registry=self.registry
        )
        self._prompt_tokens = Counter("gym_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self._cached_tokens = Counter(
            "gym_cached_tokens", "Tokens of prompts not computed again.", registry=self.registry
        )
        self._completion_tokens = Counter("gym_completion_tokens", "Tokens of replies.", registry=self.registry)
        self.in_work = Gauge("gym_requests_in_work", "Requests in work or waiting.", registry=self.registry)
        self.registry.register(self)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that is over; a path that is no route is counted as one of many."""
        path = path if path in self._routes() else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def spent(self, usage: Usage) -> None:
        """Count the tokens of a reply."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
        self._completion_tokens.inc(usage.completion_tokens)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the figures of the engine."""
        for name, value in sorted(self._engine().items()):
            yield GaugeMetricFamily(f"gym_engine_{name}", f"Of the engine: {name.replace('_', ' ')}.", value)

    def text(self) -> bytes:
        """Return all figures in the text format of Prometheus."""
        return generate_latest(self.registry)
