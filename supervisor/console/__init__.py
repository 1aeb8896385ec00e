"""The `countermand` command: it chats with a session, drives a daemon, and tells what happened.

The map, from the outside in:

    __main__.py     `python -m supervisor.console`
    cli.py          the commands, their options, and what becomes of a refusal
    completions.py  what the shell offers behind Tab
    commands/       what each command does, by the name that is typed
    chat/           `chat`: lines in, runs out
    client/         a daemon over its API, and a store that is read from the disk
    tty/            the terminal: standard input, output and error, made fit for a command
    render/         what people and programs are shown
    values.py       the values of options, without what typer would load to look at them
    ending.py       the end of a command that a signal ends
    exits.py        the exit codes, and which one an error or a run's end earns
"""
