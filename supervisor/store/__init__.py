"""The store: the log and the rows of all sessions in one SQLite file.

sqlite.py      SqliteStore, the port: commits, loads, and what happens on failure; the theory of operation
pen.py         the queue of work, and which of the two threads writes
groups.py      a group of batches in one transaction: in order, and once
connection.py  the connection that writes: opened again after an error, and checked
condition.py   whether writes succeed, as the writer finds it
work.py        what the writer is given to do
faults.py      errors of SQLite and of the disk: whose fault one is
journal.py     Stops that were answered before the store had them
health.py      the health of both, as it is shown
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
