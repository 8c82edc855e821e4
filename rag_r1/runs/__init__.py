"""Work that can be killed at any time and resumed: run folders, journals, steps, locks, processes.

- `errors` has the exception that all of them raise.
- `start_checks` finds all problems before work starts.
- `folder` is the folder of a run with its records. `settings` refuses changed settings.
- `json_lines` is an append-only file, `state_file` a file from which work resumes, and `response_cache` the
  answers of model servers.
- `cancel_token` ends a run early.
- `lock` keeps two processes out of one folder. `processes` starts commands, and ends the processes that a
  killed command left behind. `steps` and `step_loop` skip, resume or refuse steps according to their markers.
  `rag-r1 pipeline` and `rag-r1 iterate` use all of these; `rag-r1 stages` and `rag-r1 sft` use only `lock`
  and `processes`, since they have older markers: a file `finished`, and veRL's checkpoints.
- `rollout_metrics` names the files of a training's metrics, `markdown` writes the pages of results, and
  `pictures` draws their figures.
"""
