"""Metrics of runners for Prometheus. Needs prometheus-client (the extra `serve`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.errors import MissingError
from ...hw.sim.machine import Run
from .health import State

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Enum, Gauge, Histogram
except ImportError:
    raise MissingError(
        "metrics of a runner need prometheus_client, which is not installed: pip install prometheus-client "
        "(the extra serve)"
    ) from None

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds of histogram buckets for times."""
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Bounds of histogram buckets for shares."""
OUTCOMES = ("ok", "error", "timeout", "cancelled", "full")
"""How a request may end."""


class Metrics:
    """The metrics of all runners in one registry. Labels are the runner's name, which its owner chooses, and fixed
    words; text from requests or files never becomes a label."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._names: set[str] = set()

        def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"rsn_{name}", text, ["runner"], registry=registry, buckets=buckets)

        self._requests = Counter("rsn_requests", "Requests, by outcome", ["runner", "outcome"], registry=registry)
        self._failures = Counter("rsn_board_failures", "Failures of the board", ["runner"], registry=registry)
        self._depth = Gauge("rsn_queue_depth", "Requests that wait", ["runner"], registry=registry)
        self._health = Enum("rsn_health", "State", ["runner"], registry=registry, states=[s.value for s in State])
        self._fill = histogram("batch_fill", "Share of a program's sequences that a run used", SHARES)
        self._waiting = histogram("waiting_seconds", "From a request's arrival to its run")
        self._running = histogram("running_seconds", "Of a run, by the wall clock")
        self._modelled = histogram("modelled_seconds", "Of a run on the machine, by its model, where the board has one")

    def of(self, runner: str, depth: Callable[[], int]) -> Figures:
        """Return the metrics of one runner. runner: its name, the label. depth: returns how many requests wait. Raises
        `ValueError` if another open runner has this name."""
        name = runner.encode("utf-8", "backslashreplace").decode()  # the metrics page is UTF-8
        if name in self._names:
            raise ValueError(f"another runner of these metrics is called {runner!r}")
        self._names.add(name)
        self._depth.labels(name).set_function(depth)
        return Figures(self, name)


class Figures:
    """The metrics of one runner, called `name`."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics = metrics
        self._name = name
        # To look a metric up by its label takes longer than to count. And a counter that appears with its first event
        # has no rate before the second.
        self._outcomes = {outcome: metrics._requests.labels(name, outcome) for outcome in OUTCOMES}
        self._waiting, self._running, self._fill, self._modelled = (
            metric.labels(name) for metric in (metrics._waiting, metrics._running, metrics._fill, metrics._modelled)
        )

    def answered(self, outcome: str) -> None:
        """Count a request that has ended. outcome: one of `OUTCOMES`."""
        self._outcomes[outcome].inc()

    def waited(self, seconds: Sequence[float]) -> None:
        """Record how long requests that have begun were in the queue. seconds: of each."""
        for one in seconds:
            self._waiting.observe(one)

    def ran(self, took_s: float, fill: float, run: Run | None) -> None:
        """Record a successful run. took_s: seconds of the run, by the wall clock; fill: share of the program's
        sequences that were used, 0 to 1; run: its modelled time is recorded, if it has one."""
        self._running.observe(took_s)
        self._fill.observe(fill)
        if run is not None and run.clock == "modelled":
            self._modelled.observe(run.latency_s)

    def failed(self) -> None:
        """Count a failure of the board, in `rsn_board_failures`."""
        self._metrics._failures.labels(self._name).inc()

    def state(self, state: State) -> None:
        """Record the state of the board, in `rsn_health`."""
        self._metrics._health.labels(self._name).state(state.value)

    def close(self) -> None:
        """Free the name of a closed runner, and show its queue as empty."""
        self._metrics._depth.labels(self._name).set_function(lambda: 0)
        self._metrics._names.discard(self._name)

    def forget(self) -> None:
        """In a forked child (see `forks`): free the name. The counters are left alone: each has a lock, which may be
        held."""
        self._metrics._names.discard(self._name)
