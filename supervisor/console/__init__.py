"""The `countermand` command: chats with a session, drives a daemon, and shows what happened.

The map, from the outside in:

    __main__.py     `python -m supervisor.console`
    cli/            the command line: the commands, their options, completion in the shell
    commands/       the commands, one a file
    chat/           `chat`: lines in, runs out
    client/         a daemon over its API, and a store that is read from the disk
    tty/            the terminal: standard input, output and error
    render/         output for people and programs
    ending.py       the end of a command by a signal
    exits.py        the exit codes, and the code for an error or the end of a run
"""
