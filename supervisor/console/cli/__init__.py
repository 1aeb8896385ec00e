"""The command line: the commands, their parameters, and their end.

root.py         `countermand` itself: its commands in order, its start and its end
options.py      the options that commands share, and the decorator that gives them
common.py       Common: the options that may also stand before the command
chat.py         chat
records.py      commands that read: thread, runs, receipts, ps, why, sessions, events
requests.py     commands that act on a session: send, answer, stop, kill, mcp
agents.py       agents, agents reload, agents try
daemon.py       the daemon's commands: serve, config, logs, doctor; and demo, which has one of its own
completions.py  the names of sessions and agents, and the ids of runs, which the shell offers after Tab
completion.py   the shell's completion script: print it, install it

A command's code is imported when it runs, so that `--help`, `--version` and a wrong option are fast.
"""

from supervisor.console.cli.root import main

__all__ = ["main"]
