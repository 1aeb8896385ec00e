"""`chat`: lines in, runs out.

chat.py       the loop: lines, events and signals in their order, and when the chat leaves
requests.py   its requests to the session: messages and stops
backends.py   a running daemon, else a supervisor of the chat's own
attached.py   a daemon as that backend
printer.py    the events of a session, on their way to the screen
"""
