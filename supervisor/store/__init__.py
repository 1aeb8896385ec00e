"""The store: the log and the rows of all sessions in one SQLite file.

sqlite.py    the one writer: group commit, idempotent batches, loads, what happens on failure
journal.py   Stops that were answered before the store had them
health.py    how both are
reader.py    reads from any thread or process, beside a writer that is at work
tables.py    what goes into which table, and how it is read back
schema.py    opening a file, its settings, and the numbered migrations
migrations/  the migrations, in SQL
"""
