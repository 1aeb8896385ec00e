"""The `countermand` command: it chats with a session, and tells what happened in one.

The map, from the outside in:

    cli.py       the commands, their options, and what becomes of a refusal
    chat.py      `chat`: lines in, runs out; who stops what, and when it leaves
    lines.py     standard input as lines, one at a time
    printer.py   the events of a session, on their way to the screen
    screen.py    standard output and standard error, and the terminal that may be both
    reading.py   the store, read without the lock
    views.py     `thread` and `runs`
    ps.py        `ps`: what runs now
    why.py       `why`: the story of one run
    receipts.py  a receipt as a table
    words.py     times, causes and texts as people read them
    exits.py     the exit codes, and which one a run's end earns
"""
