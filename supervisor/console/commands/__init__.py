"""The commands, one a file, by name; and the checks of `doctor`.

send.py answer.py stop.py (and `kill`) events.py logs.py sessions.py thread.py runs.py receipts.py ps.py why.py
agents.py        the agents of a daemon, and their reload
demo.py          `demo`: a daemon of its own, and what it does to a stubborn agent
trial.py         `agents try`: one message to one agent, without a daemon
agent_check.py   the findings of `config check` about agents
mcp_server.py    `mcp`: an MCP server, with which an agent supervises others
watch.py         the output of a run until its receipt, for `send` and `agents try`
doctor.py        faults around a daemon, and their remedies
orphans.py       processes and ledgers that no daemon watches
units.py         the systemd unit
"""
