"""`chat`: it sends lines as messages, and shows the output of their runs.

chat.py       the loop: lines, events and signals in their order, and when the chat leaves
requests.py   its requests to the session: messages, stops and answers
questions.py  the questions of calls that wait for a person, by number
backends.py   a running daemon, else a supervisor of the chat's own
attached.py   the backend that is a running daemon
printer.py    prints the events of a session
"""
