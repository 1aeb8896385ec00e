"""The daemon: a supervisor in the foreground, configured by a file, watched by systemd, driven over a local API.

The map, from the outside in:

    serve.py     `serve`: the order of coming and going, signals, reload, shutdown
    settings.py  what the file, the environment and the command line say
    signals.py   signals as things that the main thread reads
    sockets.py   where the API listens: sockets of systemd's, or our own
    notify.py    words to systemd: ready, reloading, stopping, status, watchdog
    watchdog.py  feeds systemd's watchdog while the supervisor and the store's thread answer
    collector.py the collector of garbage waits for the end of a start
    story.py     what the log tells of runs: begun, fenced, ended, and by whom
    logs.py      the log: for people on a terminal, JSON elsewhere, with priorities in the journal
"""
