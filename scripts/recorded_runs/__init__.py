"""Runs of every command, recorded, to be compared with those of another commit.

    python scripts/recorded_runs record OUT            in the root of a checkout, with its environment
    python scripts/recorded_runs compare OLD NEW       status 1 if they differ

A change that moves and renames modules must not change what a command writes, prints, or asks of a server.
`record` runs each command as a process of its own (workplace.py) against servers of this process that
answer by rule, and leaves a folder for each run (runs.py): the files of the command, what it printed, and
what the servers were asked. `compare` reads two of these and normalises what differs from run to run
(normaliser.py).

What needs the project's own code, the servers and the rollouts without a command, is in inside.py alone, so
that it can be renamed together with that code.
"""
