"""A sandbox for work on hostile data: worker processes with limits of time, memory and output.

A few hundred bytes of somebody else's file or schema can make its parser or validator run for ever or fill
memory, and Python cannot interrupt it. So such work is a job: a function named by its import path, which
takes and returns JSON values and runs in a worker (worker.py). The workers are reused, and one that exceeds a
limit or crashes is replaced (worker_pool.py).

The jobs are here too, because a worker must start at once and so imports little else of the package:
documents.py reads HTML and PDF, json_schema.py checks arguments against a JSON schema, rdf.py reads RDF,
torch_checkpoint.py the learning rates of a checkpoint, chat_renderer.py renders a model's chat template, and
tokenizer_trial.py and parquet_trial.py try out a tokenizer and a parquet file.
"""
