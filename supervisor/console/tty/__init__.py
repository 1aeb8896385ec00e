"""The terminal: standard input, output and error, prepared for a command.

streams.py    the three streams, open and able to show every text; and whether they are read
screen.py     standard output and error, and the terminal that may be both
terminal.py   filters the output of runs for a terminal
lines.py      standard input as lines, one at a time
pasting.py    a paste as one message
"""
