"""The `countermand` command: it chats with a session, drives a daemon, and tells what happened.

The map, from the outside in:

    __main__.py     `python -m supervisor.console`
    cli.py          the commands, their options, and what becomes of a refusal
    values.py       the values of options, without what typer would load to look at them
    completions.py  what the shell offers behind Tab
    streams.py      the standard streams, made fit; and whether anybody reads
    ending.py       the end of a command that a signal ends
    exits.py        the exit codes, and which one an error or a run's end earns

    chat.py         `chat`: lines in, runs out; who stops what, and when it leaves
    hosts.py        whose sessions a chat is about: a daemon that runs, else a supervisor of its own
    lines.py        standard input as lines, one at a time
    pasting.py      what is pasted on a terminal, as one message
    printer.py      the events of a session, on their way to the screen
    screen.py       standard output and standard error, and the terminal that may be both
    terminal.py     what of the output of runs a terminal gets

    sending.py      `send`
    stopping.py     `stop` and `kill`
    events.py       `events`
    logs.py         `logs`: the daemon's own
    sessions.py     `sessions`
    thread.py       `thread`
    runs.py         `runs`
    receiving.py    `receipts`
    ps.py           `ps`: what lives now
    why.py          `why`: the story of one run
    doctor.py       `doctor`: what is wrong, and what helps
    finding.py      what it has found
    orphans.py      processes and ledgers that nobody watches over
    units.py        the systemd unit

    records.py      what is on record: asked of the daemon, else read from the disk
    remote.py       the one
    reading.py      the other
    attended.py     whether somebody works on a run that is on record as open
    api.py          the daemon's API, over its socket
    attached.py     a daemon as the host of a chat
    follower.py     its events as they come, across breaks of the connection
    place.py        where it is to be found

    output.py       lines, tables and JSON on standard output
    progress.py     what is waited for, on a terminal
    receipts.py     a receipt as a table
    words.py        times, causes and texts as people read them
"""
