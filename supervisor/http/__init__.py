"""The local API: the supervisor over HTTP, on a Unix socket and, if it is asked for, on loopback.

The map, from the outside in:

    server.py      HttpServer: the server's thread, on sockets that are ready
    serving.py     Serving: the server's life on its loop
    connection.py  Connection: who is at the other end, and how long it may take
    access.py      who may come in: the peer's uid, or a bearer token and a Host header of our own
    middleware.py  AdmissionMiddleware: what every request comes through
    app.py         make_app: routes, errors and the OpenAPI document, put together
    sessions.py runs.py events.py processes.py health.py metrics.py   the routes, by noun
    desk.py        Desk: what the routes ask of the supervisor, without ever blocking the loop
    streams.py     a session's events as Server-Sent Events
    gauges.py      what is counted, and what is read when somebody asks for it
    document.py    the OpenAPI document
    routing.py     what all routes have in common
    refusals.py    errors as answers
    limits.py      every bound, with its unit
"""
