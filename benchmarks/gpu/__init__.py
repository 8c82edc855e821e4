"""Measures a GPU in phases, each of which keeps its results when it is cut off.

A phase consists of cells, each of which is one measurement. `command` runs the phases in turn; `runner`
starts a `worker` process for each group of cells, which calls the phase's module and writes the results.

- `command`       the command line of benchmarks/gpu.py
- `plan`          the settings of a run: sizes, models, folders
- `cells`         a cell, and the file with its result
- `machine`       provenance, and the refusal of another machine or other settings
- `runner`        runs the cells of a phase in worker processes, within its minutes
- `worker`        a process that measures cells
- `memory_use`    peaks of memory: of a GPU, or resident on a CPU
- `made`          files and folders that are made once
- `models`        models of real shapes with random weights
- `engine`        veRL's FSDP engine without Ray and vLLM, from a recipe
- `estimate`      the preflight's estimate of memory for this engine
- `sent_model`    transformers' model with the weights that an engine sends to vLLM
- `served`        vLLM's server alone: generation and sleep
- `trainings`     whole trainings, and the metrics of their steps
- `report`        the section of docs/results/gpu.md
- `phases`        the phases
"""
