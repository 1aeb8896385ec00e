"""Times, causes and texts as people read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from actors.errors import CountermandError
from actors.model import Json, Provenance, RunParent
from actors.parts import MediaPart, Part
from actors.text import one_line
from actors.usage import Usage

ERROR_CHARS: Final = 700
"""So much of an error is shown: most say what was expected, what came and what to do."""


def clock_time(at: float | None) -> str:
    """Return a time of day, local, for seconds since the epoch."""
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def date_time(at: float | None) -> str:
    """Return date and time, local, for seconds since the epoch."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration(start: float | None, end: float | None) -> str:
    """Return the time between two moments, in seconds, or in minutes where those are many."""
    if start is None or end is None:
        return "-"
    seconds = max(0.0, end - start)
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def plural(count: int, word: str, many: str = "") -> str:
    """Return a count with its noun; `many` where the plural is not made by an s."""
    return f"{count} {word}" if count == 1 else f"{count} {many or word + 's'}"


def usage_words(usage: Usage) -> str:
    """Say what a run has used; tokens only where its agent has said them."""
    parts = [plural(usage.calls, "call")]
    if usage.tokens or usage.cached or usage.reasoning:
        inside = [
            f"{count:,} {kind}" for kind, count in (("cached", usage.cached), ("reasoning", usage.reasoning)) if count
        ]
        more = f" ({', '.join(inside)})" if inside else ""
        parts.insert(0, f"{usage.tokens:,} tokens: {usage.input:,} of input, {usage.output:,} of output{more}")
    return "; ".join(parts)


def head(text: str, width: int = 60) -> str:
    """Return the beginning of a text, on one line, at most `width` characters."""
    line = one_line(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def file_words(part: MediaPart) -> str:
    """Return the name, the type and the size of a file, on one line."""
    named = f"{part.name}, " if part.name else ""
    return one_line(f"{named}{part.media_type}, {plural(part.size, 'byte')}")


def with_files(content: str, parts: Sequence[Part]) -> str:
    """Return the text of a message, and behind it its files in brackets."""
    files = [f"[{file_words(part)}]" for part in parts if isinstance(part, MediaPart)]
    return " ".join([content, *files] if content else files)


def cause(provenance: Provenance) -> str:
    """Say who ended something, and why."""
    return one_line(f"{provenance.source}: {provenance.reason}")


def cause_in_full(provenance: Provenance) -> str:
    """Say who ended something, why, how, when, and on whose behalf."""
    by = f", by {one_line(provenance.requested_by)}" if provenance.requested_by else ""
    return f"{cause(provenance)} ({provenance.mode}, asked for at {clock_time(provenance.initiated_at)}{by})"


def child_of(parent: RunParent) -> str:
    """Say whose part a child run is."""
    return f"{parent.run_id} of session {one_line(parent.session)}, by its {parent.call_id}"


def refusal(error: CountermandError) -> str:
    """Say what was refused, what would have been accepted, and what to do; a line for each."""
    return "\n".join(refusal_lines(error))


def refusal_lines(error: CountermandError) -> list[str]:
    """Return the lines of `refusal`."""
    said = (("  expected: ", error.expected), ("  got: ", error.got), ("  to do: ", error.remedy))
    return [one_line(error.message), *(one_line(f"{label}{value}") for label, value in said if value)]


def script_ended(result: Json) -> str:
    """Say how a script ended, by what its agent returned; empty where that was an exit with 0, or it was no script."""
    from supervisor.tools.shell import describe_exit

    if not isinstance(result, dict) or "exit_code" not in result:
        return ""
    code, outcome = result["exit_code"], result.get("outcome")
    if isinstance(code, int):
        return describe_exit(code) if code else ""
    return one_line(outcome).replace("_", " ") if isinstance(outcome, str) else ""


def script_problem(result: Json) -> str:
    """Say why a script did not come to an exit of its own, in the words of its agent; empty where it did."""
    if not isinstance(result, dict) or result.get("exit_code") is not None:
        return ""
    problem = result.get("problem")
    return problem if isinstance(problem, str) else ""


def age(seconds: float | None) -> str:
    """Return how long something has lasted, in the two largest units that fit; empty where that is not known."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def not_durable(*, journalled: bool) -> str:
    """What is said of a stop that the store does not have yet."""
    if journalled:
        return "the store does not answer: the stop holds, a crash does not forget it, and it is written later"
    return "the store does not answer: the stop holds, and is written later; a crash before that would forget it"
