"""What a person reads of a question that a call asks."""

from __future__ import annotations

from shlex import quote

from actors.questions import Asking


def question(asking: Asking) -> str:
    """Return a question with the answers that it offers."""
    choice = f" ({', '.join(asking.options)})" if asking.options else ""
    return f"{asking.question}{choice}"


def asked(asking: Asking, session: str | None) -> list[str]:
    """Return a question, and how it is answered from another terminal.

    `session`: the one of its call; None: no daemon has it, and no command reaches it.
    """
    if session is None:
        how = "nobody can answer it here; Ctrl-C ends it"
    else:
        what = "--allow, or --decline WHY" if asking.approval else "TEXT"
        how = f"to answer: countermand answer {quote(session)} {asking.call_id} {what}"
    return [f"question: {question(asking)}", f"  {how}"]
