"""What ships: agents.

shell.py      `shell`: runs each message as a script
scripted.py   the agent of `countermand demo`, whose model is a script
"""
