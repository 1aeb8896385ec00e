"""The protocol of a session: pure decisions, without a mailbox, a thread or a clock.

    decisions.py     Protocol: requests from outside, and the restoring of a session
    trees.py         process trees that belong to the session
    runs.py          how runs begin and end: fence, close, settle
    calls.py         what an open run reports and asks for: text, steering, calls, processes
    state.py         what all decisions rest on: the state, the log, acceptance, the barrier
    run_record.py    what a session knows of one run, and its receipt
    queue.py         messages that wait
    request_book.py  request ids and their answers
    step.py          what one turn of the mailbox decided: events, rows, effects
    notes.py         what the model is told of an interruption

It may import the nouns and the gate. `hierarchy` carries out what is decided here.
"""
