"""`why`: the story of one run: what it was given, how it ended, who ended it, and what became of each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from actors.model import Message, Provenance, Receipt, RunInfo, RunStatus
from supervisor.console.reading import find_run, open_store
from supervisor.console.receipts import table
from supervisor.console.views import console, print_json
from supervisor.console.words import cause_in_full, date_time, duration, head, shown
from supervisor.store.reader import SqliteReader


class Story(Struct, frozen=True):
    """All that the store tells of a run. `texts`: the contents of the messages it names, by their ids."""

    run: RunInfo
    receipt: Receipt | None
    inputs: tuple[Message, ...]
    retried_by: tuple[str, ...]
    texts: dict[str, str]


def read_story(reader: SqliteReader, run: RunInfo) -> Story:
    """Gather what the store holds of a run."""
    receipt = reader.receipt(run.session, run.run_id)
    thread = {message.id: message for message in reader.thread(run.session)}
    named = set(run.inputs)
    if receipt is not None:
        named.update(receipt.waiting, receipt.withdrawn)
    texts = {key: thread[key].content for key in named if key in thread}
    if named - texts.keys():
        texts |= _texts_of_returned(reader, run.session, named - texts.keys())
    return Story(
        run=run,
        receipt=receipt,
        inputs=tuple(thread[key] for key in run.inputs if key in thread),
        retried_by=tuple(other.run_id for other in reader.runs(run.session) if other.retry_of == run.run_id),
        texts=texts,
    )


def _texts_of_returned(reader: SqliteReader, session: str, wanted: set[str]) -> dict[str, str]:
    """Find messages that never became an input: the log alone holds them."""
    texts: dict[str, str] = {}
    after = 0
    while events := reader.events(session, after):
        for event in events:
            if event.kind in ("session.message_waiting", "session.message_returned"):
                key = event.data["message_id"]
                if key in wanted:
                    texts[key] = event.data["content"]
        after = events[-1].seq
    return texts


def show_why(state_dir: Path, identity: str, *, as_json: bool) -> None:
    """Print the story of a run. Raises NotFound, Invalid, StoreUnavailable."""
    with open_store(state_dir) as reader:
        story = read_story(reader, find_run(reader, identity))
    if as_json:
        print_json(story)
        return
    out = console()
    _tell(out, story)
    if story.receipt is not None:
        _head(out, "What became of its parts")
        # Laid out already; printed as it is, so that nothing in it is taken for markup.
        out.file.write(table(story.receipt, out.width, colour=out.is_terminal))
        _tell_rest(out, story, story.receipt)


def _tell(out: Any, story: Story) -> None:
    run = story.run
    _head(out, f"Run {run.run_id}")
    ended = f"{date_time(run.ended_at)}, after {duration(run.started_at, run.ended_at)}" if run.ended_at else "not yet"
    facts = [
        ("session", shown(run.session)),
        ("generation", "none yet" if run.generation is None else str(run.generation)),
        ("agent", run.agent),
        ("status", _status(run)),
        ("accepted", date_time(run.created_at)),
        ("started", date_time(run.started_at) if run.started_at else "never"),
        ("ended", ended),
    ]
    if run.retry_of:
        facts.append(("retry of", f"{run.retry_of} (attempt {run.attempt})"))
    facts.extend(("tried again", run_id) for run_id in story.retried_by)
    for name, value in facts:
        _say(out, f"  {name:<11} {value}")
    _head(out, "What it was given")
    for key in run.inputs:
        _say(out, f"  {key}  {head(story.texts.get(key, 'its text is not in the store'))}")
    if not run.inputs:
        _say(out, "  no message of its own" + (": it resumed the thread" if run.started_at else ""))
    _head(out, "Who ended it")
    for line in _ending(run):
        _say(out, f"  {line}")


def _status(run: RunInfo) -> str:
    if run.status is RunStatus.COMPLETED and isinstance(run.result, dict) and "exit_code" in run.result:
        return f"completed, exit code {run.result['exit_code']}"
    return str(run.status)


def _ending(run: RunInfo) -> list[str]:
    lines = [f"error: {head(run.error, 500)}"] if run.error else []
    if run.provenance is not None:
        lines += _chain(run.provenance)
    elif run.status is RunStatus.COMPLETED:
        lines.append("nobody: it came to its own end")
    elif run.status is RunStatus.FAILED:
        lines.append("nobody: its agent failed")
    else:
        lines.append("nobody yet")
    for later in run.later:
        lines += [f"later also {line}" if index == 0 else line for index, line in enumerate(_chain(later))]
    return lines


def _chain(provenance: Provenance | None) -> list[str]:
    lines: list[str] = []
    while provenance is not None:
        lines.append(("  because of " if lines else "") + cause_in_full(provenance))
        provenance = provenance.cause
    return lines


def _tell_rest(out: Any, story: Story, receipt: Receipt) -> None:
    if receipt.refused:
        refused = ", ".join(f"{count} of kind {kind!r}" for kind, count in sorted(receipt.refused.items()))
        _say(out, f"Refused after its end: {refused}")
    for title, keys in (("Left waiting", receipt.waiting), ("Withdrawn", receipt.withdrawn)):
        for key in keys:
            _say(out, f"{title}: {key}  {head(story.texts.get(key, ''))}")


def _head(out: Any, text: str) -> None:
    from rich.text import Text

    out.print(Text(text, style="bold"))


def _say(out: Any, text: str) -> None:
    from rich.text import Text

    out.print(Text(shown(text)), soft_wrap=True)
