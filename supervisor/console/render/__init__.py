"""Output for people and programs.

output.py     lines, tables and JSON on standard output, remarks on standard error
progress.py   the progress of a wait, on a terminal
question.py   a question that a call asks a person
receipts.py   a receipt as a table
words.py      times, causes and texts as people read them
"""
