"""`chat`: lines in, runs out.

chat.py       who stops what, and when the chat leaves
backends.py   whose sessions it is about: those of a daemon that runs, else of a supervisor of its own
attached.py   a daemon as that backend
printer.py    the events of a session, on their way to the screen
"""
