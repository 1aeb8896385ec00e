"""Agents in processes of their own: hosts, and the protocol that the daemon speaks with them.

    pool.py               HostPool, the port `actors.hosts.Hosts`: spares, and the owner of each host
    status.py             agents and their hosts, as shown to people
    host.py               one process in which an agent runs: its tree, its socket, its hello, its end
    run.py                one run in a host: converts frames to actions of its turn, and back
    calls.py              the calls that a host asks for, and those that it executes itself
    answers.py            the answers of models that a host puts on record
    attachments.py        the bytes of attachments that a host reads
    processes.py          the process trees that a host asks for
    guards.py             the guards of code in a host
    account.py            the credit of a run in a host
    late.py               frames that come after the end of their run, counted
    around.py             the functions that a host gives its run, and the run's terms
    channel.py            lines over the socket of one host, in both directions
    peer.py               requests and answers over a channel
    frames.py             the frames as structs: methods, parameters, answers
    lines.py              the lines that they are in; the one place where these are encoded and taken apart
    schema.py             the JSON schema of the frames, `docs/host-protocol.json`
    tool_process.py       what runs in the process of a tool that has one
    countermand_host.py   starts the host of a Python agent
    runtime/              what runs in it: a package of its own, with the standard library alone

`docs/host-protocol.md` describes the protocol for people who write a host.
"""
