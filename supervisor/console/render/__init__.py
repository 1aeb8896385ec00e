"""What people and programs are shown.

output.py     lines, tables and JSON on standard output, remarks on standard error
progress.py   what is waited for, on a terminal
receipts.py   a receipt as a table
words.py      times, causes and texts as people read them
"""
