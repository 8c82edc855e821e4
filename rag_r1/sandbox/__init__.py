"""A sandbox for work on untrusted data: worker processes with limits on time, memory and output.

A few hundred bytes of an untrusted file or schema can make a parser or validator run forever or fill the
memory, and Python cannot interrupt it. Such work is therefore a job: a function named by its import path,
which takes and returns JSON values and runs in a worker process (worker.py). Workers are reused. A worker
that exceeds a limit or crashes is replaced (worker_pool.py).

The jobs are in this package, too, because a worker must start quickly and so imports little else:

- `documents` reads HTML and PDF, and `rdf` reads RDF.
- `json_schema` checks arguments against a JSON schema.
- `torch_checkpoint` reads the learning rates in a checkpoint.
- `chat_renderer` renders a model's chat template; `chat_template` calls it.
- `tokenizer_trial` and `parquet_trial` try out a tokenizer and a parquet file; `chat_template` and `parquet`
  call them.

A job gets the path of a file through `job_paths`.
"""
