"""`stop` and `kill`: end one run, or all that runs in a session, and wait for the proof.

The answer to a Stop says that the run is fenced: nothing more of it is accepted. The receipt follows when everything
has ended. If the command ends before that, the Stop stays in effect.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from actors.errors import CountermandError, ReceiptPending
from actors.ids import new_request_id
from actors.model import Scope, StopOutcome
from actors.requests import Stop
from supervisor.console.client.api import Api, need_api, segment
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.client.records import find_run
from supervisor.console.client.remote_records import RemoteRecords
from supervisor.console.exits import ExitCode, of_error
from supervisor.console.render.output import console, print_json, say
from supervisor.console.render.progress import Progress
from supervisor.console.render.receipts import table
from supervisor.console.render.words import head, not_durable, plural, refusal, with_files
from supervisor.live_tree import Living
from supervisor.wire import AllStopped, KillBody, StopAllBody, StopAnswer, StopBody

if TYPE_CHECKING:
    from rich.console import Console

SOURCE: Final = "user.console"
LOOK_S: Final = 0.5
"""How often to count the remaining calls and processes while waiting for a receipt, in seconds."""


def requested(reason: str, identity: str | None = None, **chosen: str | None) -> Stop:
    """Return the Stop that the options describe; None stands for the default. Raises Invalid for a bad value."""
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return Stop(source=SOURCE, id=identity or new_request_id(), reason=reason, **given)


def stop_session(endpoint: Endpoint, session: str, stop: Stop, wait_s: float, *, as_json: bool) -> ExitCode:
    """Stop what runs in a session, or only the run that the Stop names, and print the outcome.

    Args:
        endpoint: where to look for the daemon.
        session: the session's name.
        stop: the Stop; its `run_id` may be a prefix of an id.
        wait_s: how long to wait for the receipt, in seconds; 0: do not wait.
        as_json: print the answer as JSON.

    Raises:
        NoDaemon, NotFound, Invalid: nothing was stopped.
    """
    api = need_api(endpoint)
    if stop.run_id is not None:
        stop = structs.replace(stop, run_id=find_run(RemoteRecords(api), stop.run_id).run_id)
    answer = api.post(f"/v1/sessions/{segment(session)}/stop", StopAnswer, StopBody.of(stop))
    with _holds():
        return _outcome(api, answer, wait_s, owned=_ends_owned(stop), as_json=as_json)


def kill_run(endpoint: Endpoint, identity: str, stop: Stop, wait_s: float, *, as_json: bool) -> ExitCode:
    """End one run at once, in whichever session it is, and nothing else; see `stop_session`."""
    api = need_api(endpoint)
    run = find_run(RemoteRecords(api), identity)
    answer = api.post(f"/v1/runs/{segment(run.run_id)}/kill", StopAnswer, KillBody.of(stop))
    with _holds():
        return _outcome(api, answer, wait_s, owned=False, as_json=as_json)


def stop_all(endpoint: Endpoint, stop: Stop, wait_s: float, *, as_json: bool) -> ExitCode:
    """Stop what runs in every session, and print the outcomes; see `stop_session`."""
    api = need_api(endpoint)
    done = api.post("/v1/stop", AllStopped, StopAllBody.of(stop))
    with _holds():
        return _all_outcomes(api, done, wait_s, owned=_ends_owned(stop), as_json=as_json)


def _ends_owned(stop: Stop) -> bool:
    """True if it also ends the session's own processes: it then has a receipt even if no run is active."""
    return stop.scope is Scope.SESSION


def _all_outcomes(api: Api, done: AllStopped, wait_s: float, *, owned: bool, as_json: bool) -> ExitCode:
    code = ExitCode.FAILED if done.failed else ExitCode.OK
    answers = []
    # One for all of them: they end at the same time.
    deadline = time.monotonic() + wait_s
    for answer in done.stopped:
        settled = answer
        try:
            if wait_s:
                settled = _settled(api, answer, max(0.0, deadline - time.monotonic()), owned=owned)
        except CountermandError as error:
            print(f"countermand: session {head(answer.session)}: {refusal(error)}", file=sys.stderr)
            code = max(code, of_error(error))
        answers.append(settled)
        code = max(code, _earned(settled, wait_s, owned=owned))
    if as_json:
        print_json(AllStopped(answers, done.failed))
        return code
    out = console()
    if not answers and not done.failed:
        say(out, "nothing was running in any session", "dim")
    for answer in answers:
        say(out, f"session {head(answer.session)}: {_sentence(answer, owned=owned)}{_proof(answer)}")
        if answer.receipt is None and _has_receipt(answer, owned=owned):
            _say_pending(out, answer, wait_s)
    for failed in done.failed:
        say(out, f"session {head(failed.session)} could not be reached: {failed.error.message}", "red")
    return code


@contextlib.contextmanager
def _holds() -> Iterator[None]:
    """If the user ends the wait for the receipt, print that the Stop stays in effect."""
    try:
        yield
    except KeyboardInterrupt:
        print("countermand: the stop holds; this command no longer waits for its receipt", file=sys.stderr)
        raise


def _outcome(api: Api, answer: StopAnswer, wait_s: float, *, owned: bool, as_json: bool) -> ExitCode:
    out = console()
    if not as_json:
        say(out, _sentence(answer, owned=owned))
        for message in answer.withdrawn:
            say(out, f"withdrawn: {message.id}  {head(with_files(message.content, message.parts))}")
        if not answer.durable:
            say(out, not_durable(journalled=answer.journalled), "yellow")
        out.file.flush()
    settled = _settled(api, answer, wait_s, owned=owned) if wait_s else answer
    if as_json:
        print_json(settled)
    elif settled.receipt is not None:
        out.file.write(table(settled.receipt, out.width, colour=out.is_terminal))
    elif _has_receipt(answer, owned=owned):
        _say_pending(out, answer, wait_s)
    return _earned(settled, wait_s, owned=owned)


def _say_pending(out: Console, answer: StopAnswer, wait_s: float) -> None:
    where = f"countermand why {answer.run_id}" if answer.run_id else f"countermand ps {answer.session}"
    say(out, f"its receipt is not filed yet: {where}", "yellow" if wait_s else "dim")


def _has_receipt(answer: StopAnswer, *, owned: bool) -> bool:
    """True if there is a receipt to wait for: of a run that it ended, or of the session's own processes."""
    if answer.outcome == StopOutcome.NOTHING_RUNNING:
        return owned
    return answer.outcome != StopOutcome.ALREADY_OVER


def _sentence(answer: StopAnswer, *, owned: bool) -> str:
    run = f"run {answer.run_id}" if answer.run_id else "what the session itself runs"
    fence = f"; the fence is at event {answer.fence_seq}" if answer.fence_seq else ""
    return {
        StopOutcome.STOPPED: f"{run} is stopped{fence}",
        StopOutcome.STOPPING: f"{run} was being stopped already{fence}",
        StopOutcome.NOTHING_RUNNING: "no run was active" if owned else "nothing was running",
        StopOutcome.ALREADY_OVER: f"{run} was over already",
        StopOutcome.UNKNOWN: "the session could not be read yet; what runs in it is stopped as soon as it can be read",
    }[answer.outcome]


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
    """Wait for the receipt, and return the answer with it, or without it if it does not come in time."""
    if answer.run_id is None and not _has_receipt(answer, owned=owned):
        return answer
    began = time.monotonic()
    with Progress() as progress:

        def show() -> None:
            progress.show(f"ending… {_left(api, answer)} ({time.monotonic() - began:.1f} s)")

        try:
            receipt = api.receipt(answer.session, answer.receipt_id, wait_s, look_s=LOOK_S, on_pending=show)
        except ReceiptPending:
            return answer
    return structs.replace(answer, receipt=receipt)


def _left(api: Api, answer: StopAnswer) -> str:
    """Return how many calls and processes of a run are left, in words."""
    try:
        tree = api.get(f"/v1/sessions/{segment(answer.session)}/processes", Living)
    except CountermandError:
        return "the number of remaining processes is not known"
    runs = [run for one in tree.sessions for run in one.runs if run.run_id in (answer.run_id, *answer.joined)]
    calls = sum(len(run.calls) for run in runs)
    alive = sum(len(run.processes) + sum(len(call.processes) for call in run.calls) for run in runs)
    if answer.run_id is None:
        alive = sum(len(one.processes) for one in tree.sessions)
    return f"{plural(calls, 'call')}, {plural(alive, 'process', 'processes')} left"
