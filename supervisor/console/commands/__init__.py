"""The commands, one a file, by the name that is typed; and what `doctor` looks at.

send.py stop.py (and `kill`) events.py logs.py sessions.py thread.py runs.py receipts.py ps.py why.py
agents.py        the agents of a daemon, and their reload
trial.py         `agents try`: one message to one agent, without a daemon
agent_check.py   what `config check` finds of agents
watch.py         what a run says until its receipt, for `send` and `agents try`
doctor.py        what is wrong, and what helps
orphans.py       processes and ledgers that no daemon watches over
units.py         the systemd unit
"""
