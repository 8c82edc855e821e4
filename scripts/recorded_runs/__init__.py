"""Records runs of every command, and compares them with those of another commit.

    python scripts/recorded_runs record OUT            in the root of a checkout, with its environment
    python scripts/recorded_runs compare OLD NEW       status 1 if they differ

A change that moves and renames modules must not change the files, the output and the requests of a command.
`record` runs each command in a separate process (workplace.py) against servers in this process whose
responses follow rules. It leaves a folder for each run (runs.py), with the files and the output of the
command and the requests to the servers. `compare` reads two recordings, and normalises values that differ
from run to run (normaliser.py).

Only inside.py uses the project's own code, for the servers and for rollouts without a command, so that it can
be renamed together with that code.
"""
