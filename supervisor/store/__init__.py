"""The store: the log and the rows of all sessions in one SQLite file.

sqlite.py      the one writer: group commit, idempotent batches, loads, what happens on failure
journal.py     Stops that were answered before the store had them
health.py      the health of both
reader.py      reads from any thread or process, beside a writer that is at work
tables.py      what a batch writes into which table
unfit.py       batches that could not be stored, put aside
snapshot.py    what an actor needs to restore a session
events.py      the log, as it is read back
rows.py        the rows, as they are read back
documents.py   documents in rows, decoded; a damaged one hides no other
schema.py      opening a file, its settings, and the numbered migrations
migrations/    the migrations, in SQL
"""
