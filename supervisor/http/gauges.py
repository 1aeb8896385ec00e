"""Metrics: counters are updated as events are published; levels are read at each scrape.

The actors know nothing of metrics. The hub passes on each committed event (`EventHub.tap`). After a session was
restarted an event may come twice; it is recognised by its seq.

Labels are bounded. Kinds and statuses are closed lists. The first `SOURCES_MAX` sources that clients choose get labels
of their own; the others share one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from loguru import logger
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from actors.errors import CountermandError
from actors.events import AnswerEndedData, AnswerLeftData, EventKind, RunEndedData, ToolEndedData, data_of
from actors.model import INSIDE_SOURCES, Event
from actors.usage import TOKENS, of_answer
from supervisor.states import StoreState
from supervisor.store.health import StoreHealth
from supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from supervisor.http.service import ApiService

SOURCES_MAX: Final = 32
SESSIONS_KEPT: Final = 10_000
_COUNTED: Final = frozenset({EventKind.RUN_ENDED, EventKind.ANSWER_ENDED, EventKind.ANSWER_LEFT, EventKind.TOOL_ENDED})
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0)


class Gauges:
    """The metrics of one server, in a registry of their own. Any thread.

    Args:
        supervisor: its events are counted from now on.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.stop_seconds = Histogram(
            "countermand_stop_seconds",
            "From the moment a stop is sent to its session, to its answer.",
            registry=self.registry,
            buckets=_FAST,
        )
        self._end_seconds = Histogram(
            "countermand_stop_end_seconds",
            "From the fence to the receipt: all parts of the run are proven ended, or named abandoned.",
            registry=self.registry,
            buckets=_SLOW,
        )
        self._lag_seconds = Histogram(
            "countermand_store_lag_seconds",
            "From deciding an event to its being durable and published.",
            registry=self.registry,
            buckets=_FAST,
        )
        self._runs = Counter(
            "countermand_runs", "Runs that ended, by status and by source.", ["end", "source"], registry=self.registry
        )
        self._tokens = Counter(
            "countermand_tokens",
            "Tokens of answers of models, as their agents say, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._calls = Counter("countermand_calls", "Calls that ended, by outcome.", ["outcome"], registry=self.registry)
        self._sources: set[str] = set()
        self._seen: OrderedDict[str, int] = OrderedDict()
        supervisor.tap(self.saw)

    def saw(self, session: str, events: Sequence[Event]) -> None:
        """Count published events. It has to be quick: it runs on the thread of a session's actor."""
        last = self._seen.pop(session, 0)
        self._seen[session] = max(last, events[-1].seq)
        if len(self._seen) > SESSIONS_KEPT:
            self._seen.popitem(last=False)
        self._lag_seconds.observe(max(0.0, time.time() - events[-1].at))  # noqa: TID251  # as the events' own times
        for event in events:
            if event.seq > last and event.kind in _COUNTED:
                self._count(event)

    def _count(self, event: Event) -> None:
        match data_of(event):
            case RunEndedData() as ended:
                self._ended(ended)
            case AnswerEndedData() | AnswerLeftData() as answer:
                cost = of_answer(answer.usage)
                for kind in TOKENS:
                    self._tokens.labels(kind).inc(getattr(cost, kind))
            case ToolEndedData() as call:
                self._calls.labels(str(call.outcome)).inc()
            case _:
                pass

    def _ended(self, data: RunEndedData) -> None:
        receipt = data.receipt
        source = self._source(receipt.provenance.source) if receipt.provenance else "itself"
        self._runs.labels(str(data.status), source).inc()
        if receipt.provenance:
            self._end_seconds.observe(max(0.0, receipt.ended_at - receipt.fenced_at))

    def _source(self, source: str) -> str:
        if source in INSIDE_SOURCES or source in self._sources:
            return source
        if len(self._sources) >= SOURCES_MAX:
            return f"{source.partition('.')[0]}.other"
        self._sources.add(source)
        return source


class Levels:
    """The levels, read at each scrape. It blocks while it reads the store: not for the loop's thread.

    Args:
        service: has the server's own levels.
    """

    def __init__(self, service: ApiService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield each level."""
        service, supervisor = self._service, self._service.supervisor
        fenced = CounterMetricFamily(
            "countermand_fenced_effects",
            "Effects of closed runs and calls that were refused, by kind.",
            labels=["kind"],
        )
        for kind, count in supervisor.refused().items():
            fenced.add_metric([kind], count)
        yield fenced
        yield _gauge("sessions_resident", "Sessions that have an actor.", len(supervisor.resident()))
        yield _gauge("threads_busy", "Threads of agents and tools.", len(supervisor.executing()))
        queues = GaugeMetricFamily("countermand_queue_depth", "What waits, by queue.", labels=["queue"])
        queues.add_metric(["store"], supervisor.store_queue())
        queues.add_metric(["actors"], supervisor.ready_actors())
        yield from _store(supervisor.store_health())
        yield _gauge("http_streams", "Event streams that are open.", service.streams)
        yield _gauge("http_waits", "Requests that wait for a receipt.", service.waits)
        try:
            waiting, leaked = supervisor.store.count_waiting(), len(leaked_threads(supervisor))
            processes = supervisor.processes()
        except CountermandError as error:
            # A level that cannot be read is left out, which an alert can detect.
            logger.warning("the store could not be read for metrics: {}", error)
            yield queues
            return
        queues.add_metric(["messages"], waiting)
        yield queues
        yield _gauge("processes", "Processes that live below wardens.", len(processes))
        yield _gauge("process_trees", "Process trees that live.", len({one.process_id for one in processes}))
        yield _gauge("threads_leaked", "Threads whose run or call is over and that go on: they ignore it.", leaked)


def leaked_threads(supervisor: Supervisor) -> list[str]:
    """Return the ids of ended runs and calls whose agent or tool has not ended. Reads the store."""
    executing = supervisor.executing()
    if not executing:
        return []
    # A run that is not settled is still ending: its threads have their grace.
    unsettled = {run.run_id for run in supervisor.store.open_runs() if not run.settled}
    calls = {call.call_id for call in supervisor.store.open_calls() if call.run_id in unsettled}
    return sorted(_without(executing, unsettled | calls))


def _without(keys: Iterable[str], known: set[str]) -> Iterator[str]:
    return (key for key in keys if key not in known)


def _store(health: StoreHealth) -> Iterator[Metric]:
    """Yield the health of the store and its stop journal. It needs no read, so it works when reads fail."""
    states = GaugeMetricFamily("countermand_store_state", "1 at the state that the store is in.", labels=["state"])
    for state in StoreState:
        states.add_metric([state], health.state == state)
    yield states
    yield _gauge("store_writable", "1 if a message would be accepted, as far as is known.", health.writable)
    yield _gauge("store_waiting_seconds", "How long the oldest batch or load has waited for the store.", health.lag_s)
    if health.failed_at is not None:
        yield _gauge("store_failed_timestamp_seconds", "When the store last met an error.", health.failed_at)
    yield _count("store_reopened", "How often the store was opened again after an error.", health.reopened)
    yield _count("store_unfit_batches", "Batches that could not be stored because of their own data.", health.unfit)
    journal = health.journal
    yield _gauge("stop_journal_kept", "Stops in the journal that the store does not have yet.", journal.kept)
    yield _gauge("stop_journal_unwritten", "Slots of the journal that are still to be written.", journal.unwritten)
    yield _gauge("stop_journal_slots_free", "Slots of the journal that are free.", journal.slots_free)
    yield _gauge("stop_journal_failing", "1 if the journal cannot be written now, or hangs.", not journal.writes)
    yield _gauge(
        "stop_journal_writing_seconds", "How long the write of the journal under way has taken.", journal.writing_s
    )
    yield _count("stop_journal_refused", "Stops for which the journal had no room.", journal.refused)


def _count(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"countermand_{name}", help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"countermand_{name}", help_text, value=value)
