"""The gauntlet: every nasty kind of command, ended in every way, many times, and a count of who survived.

__main__.py   the command line; an ordinary user's gauntlet is a child of the one that was started as root
as_user.py    the gauntlet as an ordinary user, whom root starts
cases.py      the cases by name: a command, how to tell that it is up, and what it needs of the machine
roles.py      what processes of a case do; a script of its own, for the standard library alone
plugins.py    the agent and the tools that run a case
census.py     who of a case lives, found without the product; and how what is left is ended
judge.py      a receipt held against what was seen
single.py     one run of one case, ended by a stop, a new message, a deadline, its own end, a warden's death
by_host.py    the same for an agent in a host, which starts the command itself
hosted.py     that agent; for the standard library alone
crash.py      many runs at once in a daemon that is killed, and what the next one says of them
kills.py      kills daemons whose hosts are in every state: a command line of its own
killed.py     such a daemon, and its load
hosted_load.py  what runs in its hosts; for the standard library alone
report.py     counting, the table, the document
"""
