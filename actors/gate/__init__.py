"""The gate: the small shared objects that a fence acts on without waiting for anybody.

    cell.py      Cell: decides once whether a call, or a spawn, takes place
    token.py     CancelToken: tells code that is under way that it should end
    pending.py   replies that a cancel ends
    credit.py    how far an agent may be ahead of the store

It may import the kernel and the nouns (`errors`, `model`).
"""
