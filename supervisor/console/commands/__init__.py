"""The commands, one a file, by the name that is typed; and what `doctor` looks at.

send.py stop.py (and `kill`) events.py logs.py sessions.py thread.py runs.py receipts.py ps.py why.py
doctor.py        what is wrong, and what helps
orphans.py       processes and ledgers that no daemon watches over
units.py         the systemd unit
"""
