"""`ps`: what runs now below a supervisor, and whose it is; also while another process is that supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actors.model import Owner
from supervisor.console.reading import check_session, open_store
from supervisor.console.views import console, print_json
from supervisor.console.words import duration, head
from supervisor.listing import LiveProcess, live_processes

MIB: Final = 1024 * 1024


def show_ps(state_dir: Path, session: str | None, *, as_json: bool) -> None:
    """Print the live processes of one session, or of all. Raises NotFound, StoreUnavailable."""
    with open_store(state_dir) as reader:
        if session is not None:
            check_session(reader, session)
        found = live_processes(state_dir, reader, session)
    if as_json:
        print_json(found)
        return
    from rich.table import Table
    from rich.text import Text

    out = console()
    if not found:
        out.print(Text("nothing runs", style="dim"))
        return
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("session", "owner", "pid", "parent", "cpu", "memory", "age", "command"):
        right = name in ("pid", "parent", "cpu", "memory", "age")
        grid.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
    depths: dict[int, int] = {}
    for one in found:
        depth = depths[one.pid] = depths.get(one.parent, -1) + 1
        grid.add_row(
            Text(head(one.session, 20)),
            Text(_owner(one)),
            str(one.pid),
            str(one.parent),
            "-" if one.cpu_s is None else f"{one.cpu_s:.2f} s",
            "-" if one.rss_bytes is None else f"{one.rss_bytes / MIB:.1f} MiB",
            duration(0.0, one.age_s),
            Text("  " * depth + head(one.command, 80)),
        )
    out.print(grid)


def _owner(process: LiveProcess) -> str:
    return "the session" if process.owner is Owner.SESSION else process.run_id
