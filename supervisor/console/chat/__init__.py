"""`chat`: lines in, runs out.

chat.py       the loop: lines, events and signals in their order, and when the chat leaves
requests.py   what it asks of its session: messages and stops
backends.py   whose sessions it is about: those of a daemon that runs, else of a supervisor of its own
attached.py   a daemon as that backend
printer.py    the events of a session, on their way to the screen
"""
