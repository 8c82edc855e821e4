"""Measures a GPU in phases that each leave what they have measured, also when they are cut off.

- `command`       the command line of benchmarks/gpu.py
- `plan`          what one start measures with: sizes, models, folders
- `cells`         a cell, and the file that keeps it
- `machine`       provenance, and the refusal of another machine or other settings
- `runner`        runs the cells of a phase in processes of their own, within its minutes
- `worker`        such a process
- `memory_use`    peaks of memory: of a GPU, or resident on a CPU
- `made`          files and folders that are made once
- `models`        models of real shapes with random weights
- `engine`        veRL's FSDP engine alone, from a recipe
- `estimate`      what the preflight's formulas give for the engine alone
- `sent_model`    transformers' model with what an engine sends to vLLM
- `served`        vLLM's server alone: generation and sleep
- `trainings`     whole trainings, and the split of their steps
- `report`        the section of docs/results/gpu.md
- `phases`        the phases
"""
