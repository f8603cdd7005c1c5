"""Figures for Prometheus, where ``daemon.metrics_listen`` names an address."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.submitter import Submitter
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import ConfigError

log = logging.getLogger(__name__)


class Figures:
    """Collects what the daemon's parts count, when Prometheus asks."""

    def __init__(
        self, watcher: Watcher, book: Book, submitter: Submitter, allocator: Allocator, journal: Journal
    ) -> None:
        self._watcher = watcher
        self._book = book
        self._submitter = submitter
        self._allocator = allocator
        self._journal = journal

    def collect(self) -> Iterator[Any]:
        """Yield every figure; names and labels are documented in docs/administrators.md."""
        submits = CounterMetricFamily("hetsched_submits", "Requests decided, by verdict", labels=["verdict"])
        for verdict, count in self._submitter.counts.items():
            submits.add_metric([verdict.value], count)
        yield submits
        slices = GaugeMetricFamily("hetsched_slices", "Open reservations", labels=["state", "profile"])
        counts: dict[tuple[str, str], int] = {}
        for item in self._book.open():
            counts[item.state.value, item.profile] = counts.get((item.state.value, item.profile), 0) + 1
        for (state, profile), count in sorted(counts.items()):
            slices.add_metric([state, profile], count)
        yield slices
        yield CounterMetricFamily("hetsched_given_back", "Jobs given back", value=self._allocator.given_back)
        yield CounterMetricFamily("hetsched_records_lost", "Records lost", value=self._journal.recorder.lost)
        age = self._watcher.age_s() if self._watcher.view.as_of_s else float("nan")
        yield GaugeMetricFamily("hetsched_snapshot_age_seconds", "Age of the picture of the cluster", value=age)
        up = 0 if self._watcher.failing else 1
        yield GaugeMetricFamily("hetsched_slurmctld_up", "Whether slurmctld answers", value=up)


def serve(address: str, figures: Figures) -> None:
    """Serve ``figures`` at ``address`` (HOST:PORT); raises `ConfigError` when it cannot be bound."""
    registry = CollectorRegistry()
    registry.register(figures)
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host, registry)
    except (OSError, ValueError) as error:
        raise ConfigError(f"daemon.metrics_listen: cannot listen on {address!r}: {error}") from error
