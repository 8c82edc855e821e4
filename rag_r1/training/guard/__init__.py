"""Tells when a training goes wrong, and goes back to a good checkpoint.

history.py      the metrics so far, as series
signs.py        what a sign is, and its verdict
rules.py        the known signs: numbers in, signs out
guard.py        which signs are new after a step
bands.py        the expected band of a recipe
watch.py        what `rag-r1 train` prints
supervisor.py   `--supervise`: ends and restarts; checkpoints.py and learning_rate.py change the folder,
                attempts.py keeps the record
"""
