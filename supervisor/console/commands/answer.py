"""`answer`: answers a call that waits for a person."""

from __future__ import annotations

from actors.requests import Answer, Answered
from supervisor.console.client.api import need_api, segment
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, print_json, say
from supervisor.wire import AnswerBody


def send_answer(endpoint: Endpoint, session: str, answer: Answer, *, as_json: bool) -> ExitCode:
    """Send an answer, and print what became of it.

    Args:
        endpoint: where the daemon is.
        session: the session of the call.
        answer: what is sent.
        as_json: print an `Answered`.

    Raises:
        NoDaemon: none answers.
        CountermandError: it was refused; NotFound: no such call waits.
    """
    api = need_api(endpoint)
    answered = api.post(f"/v1/sessions/{segment(session)}/answer", Answered, AnswerBody.of(answer))
    if as_json:
        print_json(answered)
    else:
        what = {True: "is allowed", False: "is declined", None: "is answered"}[answer.allow]
        say(console(), f"call {answered.call_id} {what}; its run is {answered.run_id}")
    return ExitCode.OK
