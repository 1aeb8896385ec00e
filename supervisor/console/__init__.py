"""The `countermand` command: it chats with a session, drives a daemon, and tells what happened.

The map, from the outside in:

    __main__.py     `python -m supervisor.console`
    cli/            the command line: the commands, their options, completion in the shell
    commands/       what each command does, by the name that is typed
    chat/           `chat`: lines in, runs out
    client/         a daemon over its API, and a store that is read from the disk
    tty/            the terminal: standard input, output and error, made fit for a command
    render/         what people and programs are shown
    ending.py       the end of a command that a signal ends
    exits.py        the exit codes, and which one an error or a run's end earns
"""
