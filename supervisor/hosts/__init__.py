"""Agents in processes of their own: hosts, and the protocol that the daemon speaks with them.

    channel.py            lines over the socket of one host, in both directions
    peer.py               requests and answers over a channel
    frames.py             the frames as structs; the one place where they are encoded and decoded
    schema.py             the JSON schema of the frames, `docs/host-protocol.json`
    countermand_host.py   starts the host of a Python agent
    runtime/              what runs in it: a package of its own, with the standard library alone

`docs/host-protocol.md` describes the protocol for people who write a host.
"""
