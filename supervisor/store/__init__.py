"""The store: the log and the rows of all sessions in one SQLite file.

sqlite.py      SqliteStore, the port: commits, loads, error handling; the theory of operation
pen.py         the writer's queue, and which of the two threads writes
groups.py      a group of batches in one transaction: in order, and once
connection.py  the connection that writes: reopened and checked after an error
condition.py   whether writes succeed, as the writer finds it
work.py        the kinds of work in the writer's queue
faults.py      errors of SQLite and of the disk, by cause
journal.py     Stops that were answered before the store had them
health.py      the health of store and journal, as shown to people
long_loads.py  loads of long sessions, on threads of their own
reader.py      reads from any thread or process, concurrent with the writer
attachment_reads.py   reads of attachments, on threads of their own
tables.py      the SQL that writes a batch
unfit.py       batches that could not be stored, kept for inspection
snapshot.py    what an actor needs to restore a session
events.py      reads of the log
thread_end.py  the newest messages, from the end of the log
rows.py        reads of the rows
documents.py   decoding the documents in rows; a damaged one is skipped
schema.py      opening a file, its settings, and the numbered migrations
migrations/    the migrations, in SQL
"""
