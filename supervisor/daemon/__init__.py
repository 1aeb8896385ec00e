"""The daemon: a supervisor in the foreground, configured by a file, watched by systemd, driven over a local API.

The map, from the outside in:

    serve.py         `serve`: startup, signals, reload, shutdown
    settings.py      the settings from the file, the environment and the command line
    agent_tables.py  agents of the settings, as the values that a library configures
    mcp_tables.py    MCP servers of the settings, likewise
    plug_ins.py      agents and tools that run in the daemon's own process, imported
    signals.py       signals as an inbox that the main thread reads
    sockets.py       the sockets of the API: systemd's, or our own
    notify.py        notifications to systemd: ready, reloading, stopping, status, watchdog
    watchdog.py      feeds systemd's watchdog while the supervisor and the store's thread answer
    collector.py     turns the garbage collector off during startup
    run_log.py       log lines about runs: started, fenced, ended, and by whom
    logs.py          the log: text on a terminal, JSON elsewhere, with priorities in the journal
"""
