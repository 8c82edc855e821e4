"""A sandbox for work on hostile data: worker processes with limits of time, memory and output.

A parser of somebody else's format, or a check against somebody else's schema, can be made to run for ever or
to fill memory by a few hundred bytes, and Python cannot interrupt it. So such work is a job: a function named
by its import path, which takes and returns JSON values and runs in a worker (worker.py). The workers are
reused, and one that exceeds a limit or crashes is replaced (worker_pool.py). The jobs are here too, because a
worker is to start at once and so imports nothing else of the package: documents.py reads HTML and PDF,
json_schema.py checks arguments against a JSON schema, rdf.py reads RDF, torch_checkpoint.py the learning
rates of a checkpoint, chat_renderer.py renders a model's chat template, and tokenizer_trial.py and
parquet_trial.py try out a tokenizer and a parquet file.
"""
