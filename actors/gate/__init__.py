"""The gate: small shared objects on which a fence acts without waiting.

    cell.py      Cell: decides once whether a call, or a spawn, takes place
    guard.py     guards: each decides whether an effect of the code's own takes place
    token.py     CancelToken: tells running code that it should end
    pending.py   replies that a cancel fails
    credit.py    how far an agent may be ahead of the store

It may import the kernel and the nouns (`errors`, `model`).
"""
