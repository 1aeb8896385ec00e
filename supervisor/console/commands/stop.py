"""`stop` and `kill`: end a run, or what runs in a session, and wait for the proof.

The answer to a Stop says that the fence is shut: nothing of the run counts from then on. The receipt follows when
everything has ended. Whoever leaves before that leaves a Stop that holds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, structs

from actors.errors import CountermandError, ReceiptPending
from actors.ids import new_request_id
from actors.model import Message, Receipt, Scope
from actors.requests import UNKNOWN, Stop
from supervisor.console.client.api import Api, need_api, segment
from supervisor.console.client.endpoint import Place
from supervisor.console.client.records import find_run
from supervisor.console.client.remote import RemoteRecords
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, print_json, say
from supervisor.console.render.progress import Progress
from supervisor.console.render.receipts import table
from supervisor.console.render.words import head, not_durable, plural
from supervisor.live_tree import Living

SOURCE: Final = "user.console"
LOOK_S: Final = 0.5
"""How often what is left is looked at while a receipt is waited for."""


class StopWish(Struct, frozen=True):
    """How a Stop is meant, by the words of the API; what is not set is left to the session."""

    id: str
    reason: str
    source: str = SOURCE
    run_id: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    waiting: str | UnsetType = UNSET


class StopAnswer(Struct, frozen=True):
    """What a Stop did; see the API."""

    session: str
    outcome: str
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool
    withdrawn: tuple[Message, ...] = ()
    joined: tuple[str, ...] = ()
    receipt: Receipt | None = None
    journalled: bool = False


class _NotStopped(Struct, frozen=True):
    session: str
    error: dict[str, Any]


class _AllStopped(Struct, frozen=True):
    stopped: list[StopAnswer]
    failed: list[_NotStopped]


def wish(reason: str, identity: str | None = None, **chosen: str | None) -> StopWish:
    """Return a StopWish of what was chosen; an option that is None is not set. Raises Invalid if it cannot be right."""
    given = {name: value for name, value in chosen.items() if value is not None}
    made = StopWish(id=identity or new_request_id(), reason=reason, **given)
    # Looked at here, where the words of the options are those of the answer.
    Stop(source=SOURCE, id=made.id, reason=reason, **given)  # type: ignore[arg-type]  # each is a text
    return made


def stop_session(place: Place, session: str, stop: StopWish, wait_s: float, *, as_json: bool) -> ExitCode:
    """Stop what runs in a session, or the run named, and show what came of it.

    Args:
        place: where the daemon is.
        session: which.
        stop: how; `run_id` may be the beginning of an id.
        wait_s: how long to wait for the receipt, in seconds; 0: not at all.
        as_json: print the answer as JSON.

    Raises:
        NoDaemon, NotFound, Invalid: nothing was stopped.
    """
    api = need_api(place)
    if isinstance(stop.run_id, str):
        stop = _with_run(stop, find_run(RemoteRecords(api), stop.run_id).run_id)
    answer = api.post(f"/v1/sessions/{segment(session)}/stop", StopAnswer, stop)
    with _holds():
        return _outcome(api, answer, wait_s, owned=_ends_owned(stop), as_json=as_json)


def kill_run(place: Place, identity: str, stop: StopWish, wait_s: float, *, as_json: bool) -> ExitCode:
    """End one run at once, wherever it is, and nothing else; see `stop_session`."""
    api = need_api(place)
    run = find_run(RemoteRecords(api), identity)
    answer = api.post(f"/v1/runs/{segment(run.run_id)}/kill", StopAnswer, stop)
    with _holds():
        return _outcome(api, answer, wait_s, owned=False, as_json=as_json)


def stop_all(place: Place, stop: StopWish, wait_s: float, *, as_json: bool) -> ExitCode:
    """Stop what runs in every session, and show what came of it; see `stop_session`."""
    api = need_api(place)
    done = api.post("/v1/stop", _AllStopped, stop)
    with _holds():
        return _all_outcomes(api, done, wait_s, owned=_ends_owned(stop), as_json=as_json)


def _ends_owned(stop: StopWish) -> bool:
    """True if it ends what the session itself runs too: where no run is active, there is a receipt to wait for."""
    return stop.scope == str(Scope.SESSION)


def _all_outcomes(api: Api, done: _AllStopped, wait_s: float, *, owned: bool, as_json: bool) -> ExitCode:
    code = ExitCode.FAILED if done.failed else ExitCode.OK
    answers = []
    for answer in done.stopped:
        settled = _settled(api, answer, wait_s, owned=owned) if wait_s else answer
        answers.append(settled)
        code = max(code, _earned(settled, wait_s, owned=owned))
    if as_json:
        print_json(_AllStopped(answers, done.failed))
        return code
    out = console()
    if not answers and not done.failed:
        say(out, "nothing was running in any session", "dim")
    for answer in answers:
        say(out, f"session {head(answer.session)}: {_sentence(answer, owned=owned)}{_proof(answer)}")
    for failed in done.failed:
        say(out, f"session {head(failed.session)} could not be told: {failed.error.get('message', '')}", "red")
    return code


@contextlib.contextmanager
def _holds() -> Iterator[None]:
    """Say that the stop holds, to whoever goes before its receipt is there."""
    try:
        yield
    except KeyboardInterrupt:
        print("countermand: the stop holds; nobody waits for its receipt any more", file=sys.stderr)
        raise


def _with_run(stop: StopWish, run_id: str) -> StopWish:
    return StopWish(stop.id, stop.reason, stop.source, run_id, stop.scope, stop.mode, stop.waiting)


def _outcome(api: Api, answer: StopAnswer, wait_s: float, *, owned: bool, as_json: bool) -> ExitCode:
    out = console()
    if not as_json:
        say(out, _sentence(answer, owned=owned))
        for message in answer.withdrawn:
            say(out, f"withdrawn: {message.id}  {head(message.content)}")
        if not answer.durable:
            say(out, not_durable(journalled=answer.journalled), "yellow")
        out.file.flush()
    settled = _settled(api, answer, wait_s, owned=owned) if wait_s else answer
    if as_json:
        print_json(settled)
    elif settled.receipt is not None:
        out.file.write(table(settled.receipt, out.width, colour=out.is_terminal))
    elif _has_receipt(answer, owned=owned):
        where = f"countermand why {answer.run_id}" if answer.run_id else f"countermand ps {answer.session}"
        say(out, f"its receipt is not filed yet: {where}", "yellow" if wait_s else "dim")
    return _earned(settled, wait_s, owned=owned)


def _has_receipt(answer: StopAnswer, *, owned: bool) -> bool:
    """True if there is one to wait for: of a run that it ended, or of what the session itself runs."""
    return answer.outcome in ("stopped", "stopping", UNKNOWN) or (answer.outcome == "nothing_running" and owned)


def _sentence(answer: StopAnswer, *, owned: bool) -> str:
    run = f"run {answer.run_id}" if answer.run_id else "what the session itself runs"
    fence = f"; the fence is at event {answer.fence_seq}" if answer.fence_seq else ""
    return {
        "stopped": f"{run} is stopped{fence}",
        "stopping": f"{run} was being stopped already{fence}",
        "nothing_running": "no run was active" if owned else "nothing was running",
        "already_over": f"{run} was over already",
        UNKNOWN: "the session could not be read yet: what runs in it is stopped when it can be",
    }.get(answer.outcome, answer.outcome)


def _proof(answer: StopAnswer) -> str:
    if answer.receipt is None:
        return ""
    gone = plural(answer.receipt.reaped, "process", "processes")
    return f", {gone} proven dead" if answer.receipt.complete else ", and NOT everything could be ended"


def _earned(answer: StopAnswer, wait_s: float, *, owned: bool) -> ExitCode:
    awaited = wait_s > 0 and _has_receipt(answer, owned=owned)
    if awaited and (answer.receipt is None or not answer.receipt.complete):
        return ExitCode.FAILED
    return ExitCode.OK


def _settled(api: Api, answer: StopAnswer, wait_s: float, *, owned: bool) -> StopAnswer:
    """Wait for the receipt, and return the answer with it, as far as it comes in time."""
    if answer.run_id is None and not _has_receipt(answer, owned=owned):
        return answer
    url = f"/v1/sessions/{segment(answer.session)}/receipts/{segment(answer.receipt_id)}"
    receipt = _awaited(api, url, wait_s, lambda: _left(api, answer))
    return structs.replace(answer, receipt=receipt)


def _awaited(api: Api, url: str, wait_s: float, left: Callable[[], str]) -> Receipt | None:
    began = time.monotonic()
    with Progress() as progress:
        while True:
            passed_s = time.monotonic() - began
            at_once_s = min(LOOK_S, max(0.0, wait_s - passed_s))
            try:
                return api.get(url, Receipt, patience_s=at_once_s, wait_s=round(at_once_s, 3))
            except ReceiptPending:
                if passed_s >= wait_s:
                    return None
            progress.show(f"ending… {left()} ({time.monotonic() - began:.1f} s)")


def _left(api: Api, answer: StopAnswer) -> str:
    """Say how much of a run is left."""
    try:
        tree = api.get(f"/v1/sessions/{segment(answer.session)}/processes", Living)
    except CountermandError:
        return "what is left cannot be read"
    runs = [run for one in tree.sessions for run in one.runs if run.run_id in (answer.run_id, *answer.joined)]
    calls = sum(len(run.calls) for run in runs)
    alive = sum(len(run.processes) + sum(len(call.processes) for call in run.calls) for run in runs)
    if answer.run_id is None:
        alive = sum(len(one.processes) for one in tree.sessions)
    return f"{plural(calls, 'call')}, {plural(alive, 'process', 'processes')} left"
