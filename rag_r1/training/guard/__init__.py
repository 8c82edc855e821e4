"""Detects that a training goes wrong, and with `--supervise` sets it back to a good checkpoint.

history.py         the metrics so far, as series over the steps
signs.py           what a sign is, and how its verdict depends on the right answers
rules.py           the known signs, as functions of the history
guard.py           applies the rules after each step and returns the new signs
bands.py           the expected band of a recipe, and the comparison of a run with it
watch.py           prints the signs and the exits from the band during `rag-r1 train`
watched_run.py     what the watching process has to know about the run
supervisor.py      `--supervise`: ends and restarts the training
checkpoints.py     keeps good checkpoints and goes back to one of them
learning_rate.py   changes the learning rate in a checkpoint
attempts.py        the record of a supervised run
"""
