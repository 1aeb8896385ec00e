"""The local API: the supervisor over HTTP, on a Unix socket and, if configured, on loopback.

The map, from the outside in:

    server.py      HttpServer: the server's thread, on sockets that are ready
    serving.py     Serving: the server on its loop
    connection.py  Connection: one client's peer and time limits
    access.py      access control: the peer's uid, or a bearer token and a Host header of our own
    middleware.py  AdmissionMiddleware: checks every request before the routes
    app.py         make_app: routes, errors and the OpenAPI document, put together
    sessions.py runs.py events.py processes.py agents.py health.py metrics.py   the routes, by noun
    service.py     ApiService: the routes' access to the supervisor, which never blocks the loop
    streams.py     a session's events as Server-Sent Events
    gauges.py      the metrics: counters, and levels that are read at a scrape
    document.py    the OpenAPI document
    routing.py     the parts that all routes share
    refusals.py    errors as answers
    limits.py      every bound, with its unit
"""
