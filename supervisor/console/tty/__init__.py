"""The terminal: standard input, output and error, made fit for a command.

streams.py    the three streams, open and able to show every text; and whether anything reads them
screen.py     standard output and error, and the terminal that may be both
terminal.py   what of the output of runs a terminal gets
lines.py      standard input as lines, one at a time
pasting.py    a paste as one message
"""
