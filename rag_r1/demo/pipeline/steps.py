"""Defines the steps of the pipeline, each with its settings, the steps that it needs, and its work.

    world              invents a world, indexes its corpus with BM25, and writes the questions
    base               pretrains a policy from random weights, without a search (pretrain.py)
    traces             records a teacher that plays the training questions      `rag-r1 traces`
    sft_data           makes SFT samples from the right traces                  `rag-r1 sft-data`
    sft                fine-tunes the base on them with veRL's SFT trainer      `rag-r1 sft`
    filter             lets the fine-tuned model play training questions on vLLM, and drops those that are
                       too easy or too hard for it                              `rag-r1 filter`
    grpo               trains the fine-tuned model on the remaining questions   `rag-r1 stages`
    grpo_without_sft   trains the base on the unfiltered questions, as a control
    evaluation         lets all models play the held-out questions (evaluation.py)

Most steps run the command at their right, with the same limits of an episode in all of them but the traces of
a real teacher, and can be resumed like the command: traces and filter repeat no finished episode, and
trainings continue from their last checkpoint. The addresses of servers are not among the settings, because
servers are started anew.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.agent import Budget
from rag_r1.demo.pipeline.arguments import SCRATCH, STEP_NAMES
from rag_r1.demo.pipeline.artifacts import PipelineArtifacts
from rag_r1.demo.pipeline.limits import (
    BUDGET,
    CONCURRENCY,
    CONTEXT_TOKENS,
    PARALLEL,
    TEACHER_BUDGET,
    TOPK,
    VLLM_OPTIONS,
    agent_keys,
    grpo_overrides,
)
from rag_r1.demo.pipeline.pretrain import pretrain
from rag_r1.demo.pipeline.teacher import RuleTeacher, TeacherServer
from rag_r1.demo.world import demo_data, write_demo
from rag_r1.io.atomic_files import write_text
from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.protocols import load_protocol
from rag_r1.runs.processes import run_module
from rag_r1.runs.steps import Step, fingerprint
from rag_r1.sft.data_arguments import SftDataArguments
from rag_r1.sft.filter_command import FilterArguments
from rag_r1.sft.progress import SftProgressBar
from rag_r1.sft.traces_command import TracesArguments
from rag_r1.sft.train_command import METRICS, SftArguments
from rag_r1.tools.retrieval.local_server import build_index
from rag_r1.training.progress import train
from rag_r1.training.stages import StagesArguments


@dataclass(frozen=True)
class Pipeline(PipelineArtifacts):
    """A pipeline, whose steps write into the folder `out`."""

    def steps(self) -> list[Step]:
        """Return the steps that the arguments require, in order."""
        steps = [
            self._world(),
            self._base(),
            self._traces(),
            self._sft_data(),
            self._sft(),
            self._filter(),
            self._grpo("grpo", "sft", "filter"),
            self._grpo("grpo_without_sft", "base", "world"),
            self._evaluation(),
        ]
        left_out = {"grpo", "grpo_without_sft"} - set(self.trainings)
        names = set(STEP_NAMES[: STEP_NAMES.index(self.args.until) + 1]) - left_out
        return [step for step in steps if step.name in names]

    def _world(self) -> Step:
        """Make the step that writes the prompts, the corpus and the questions of a world, and its index."""
        args = self.args
        settings = args.model_dump(include={"protocol", "seed", "questions", "held_out"})

        def work(folder: Path) -> dict[str, Any]:
            shutil.rmtree(folder / "index", ignore_errors=True)  # an interrupted build may have left a part
            write_text(folder / "prompt.txt", self.protocol.user_prompt)
            # A real teacher gets the full prompt, which explains the format.
            full_prompt = load_protocol(args.protocol).user_prompt
            write_text(folder / "prompt_of_a_real_teacher.txt", full_prompt)
            data = write_demo(folder, self.protocol, args.seed, args.questions, args.held_out)
            build_index(folder / "corpus.jsonl", folder / "index", "--backend", "bm25")
            return {"passages": len(data.passages), "train": len(data.train), "held_out": len(data.val)}

        # The index is not among the results, because it follows from the corpus.
        prompts = ("prompt.txt", "prompt_of_a_real_teacher.txt")
        results = ("corpus.jsonl", "train.parquet", "val.parquet", *prompts)
        return Step("world", settings, work, results)

    def _base(self) -> Step:
        """Make the step that pretrains the base, or copies an existing one."""
        args = self.args
        source = args.base_folder
        if source is None:
            settings: dict[str, Any] = {"base": SCRATCH, "protocol": args.protocol, "seed": args.seed}
            settings["steps"] = args.base_steps
        else:
            weights = sorted(path.name for path in source.glob("*.safetensors"))
            settings = {"base": fingerprint(source, ["config.json", "tokenizer.json", *weights])}

        def work(folder: Path) -> dict[str, Any]:
            policy = folder / "policy"
            if source is None:
                pretrain(policy, self.protocol, args.seed, args.base_steps)
            else:
                shutil.copytree(source, policy, dirs_exist_ok=True)
            return {"base": args.base, "steps": None if source else args.base_steps}

        return Step("base", settings, work, ("policy",))

    def _traces(self) -> Step:
        """Make the step that records the trajectories of the embedded teacher, or of a real one."""
        args = self.args
        rules = {"wrong": args.wrong, "parallel": PARALLEL[args.protocol]}
        is_real_teacher = args.teacher_model is not None
        settings = {"seed": args.seed, "teacher": args.teacher_model, **({} if is_real_teacher else rules)}

        def work(folder: Path) -> dict[str, Any]:
            with self.retriever(folder) as url, ExitStack() as stack:
                if is_real_teacher:
                    prompt, budget = self.prompt.with_name("prompt_of_a_real_teacher.txt"), TEACHER_BUDGET
                    endpoint = {"base_url": args.teacher_url, "teacher_model": args.teacher_model}
                    endpoint["api_key_env"] = args.api_key_env
                else:
                    world = demo_data(args.seed, args.questions, args.held_out)
                    teacher = RuleTeacher(world.train, **rules, seed=args.seed)
                    server = stack.enter_context(TeacherServer(teacher))
                    prompt, budget = self.prompt, BUDGET
                    endpoint = {"base_url": f"{server.url}/v1", "teacher_model": "rules"}
                episode_arguments = self._episode_arguments(folder, prompt, budget, url)
                traces = TracesArguments(**episode_arguments, **endpoint, tokenizer=str(self.base))
                run_module("rag_r1.sft.traces_command", *traces.to_argv())
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            return {key: summary[key] for key in ("judged", "right", "accuracy", "failed")}

        return Step("traces", settings, work, ("traces.jsonl",), ("world", "base"))

    def _sft_data(self) -> Step:
        """Make the step that cuts the right traces into SFT samples."""
        args = self.args

        def work(folder: Path) -> dict[str, Any]:
            samples = SftDataArguments(
                traces=[self.out / "traces" / "traces.jsonl"],
                model=str(self.base),
                protocol=args.protocol,
                prompt=str(self.prompt),
                format="verl",
                seed=args.seed,
                out=folder,
                max_context=CONTEXT_TOKENS - BUDGET.max_turn_tokens,
                max_target=BUDGET.max_turn_tokens,
            )
            run_module("rag_r1.sft.data", *samples.to_argv(), log=folder / "sft_data.log")
            summary = json.loads((folder / "sft_summary.json").read_text(encoding="utf-8"))
            left_out = {name: entry["count"] for name, entry in summary["left_out"].items()}
            return {"splits": summary["splits"], "left_out": left_out}

        results = ("train.parquet", "validation.parquet")
        return Step("sft_data", {"seed": args.seed}, work, results, ("base", "traces"))

    def _sft(self) -> Step:
        """Make the step that fine-tunes the base on the samples."""
        args = self.args
        settings = dict(seed=args.seed, epochs=args.sft_epochs, batch=args.sft_batch, set=args.sft_set)

        def work(folder: Path) -> dict[str, Any]:
            run, data = folder / "run", self.out / "sft_data"
            summary = json.loads((data / "sft_summary.json").read_text(encoding="utf-8"))
            samples = summary["splits"]["train"]["samples"]
            bar = SftProgressBar(run / METRICS, samples // args.sft_batch * args.sft_epochs)
            overrides = [
                f"model.path={hydra_quoted(self.base)}",
                f"trainer.default_local_dir={hydra_quoted(run)}",
                f"trainer.total_epochs={args.sft_epochs}",
                f"data.train_batch_size={args.sft_batch}",
                f"data.max_length={CONTEXT_TOKENS}",
                *args.sft_set,
            ]
            training = SftArguments(recipe="rag_r1/sft/demo", data=data, overrides=overrides)
            arguments, log = training.to_argv(), folder / "sft.log"
            with bar:
                run_module("rag_r1.sft.train_command", *arguments, log=log, watch=bar.read)
            return {"samples": samples, "epochs": args.sft_epochs, "loss": bar.loss}

        return Step("sft", settings, work, ("run/model",), ("base", "sft_data"))

    def _filter(self) -> Step:
        """Make the step that selects training questions by their difficulty for the fine-tuned model."""
        args = self.args
        settings = {"seed": args.seed, "questions": args.filter_questions, "share": args.filter_share}

        def work(folder: Path) -> dict[str, Any]:
            from rag_r1.inference.vllm_server import vllm_server

            print("filter: starting vLLM (half a minute)")
            with (
                self.retriever(folder) as retriever,
                vllm_server(self.sft_model.resolve(), folder / "vllm.log", options=VLLM_OPTIONS) as url,
            ):
                arguments = FilterArguments(
                    **self._episode_arguments(folder, self.prompt, BUDGET, retriever),
                    base_url=url,
                    model="policy",
                    tokenizer=str(self.sft_model.resolve()),
                    limit=args.filter_questions,
                    share=args.filter_share,
                    validation=0,
                )
                run_module("rag_r1.sft.filter_command", *arguments.to_argv())
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            names = ("questions", "right_at_first", "right_later", "never_right", "kept", "rollouts")
            return {name: summary[name] for name in names}

        return Step("filter", settings, work, ("train.parquet",), ("world", "sft"))

    def _grpo(self, name: str, start: str, questions: str) -> Step:
        """Make the step that trains the model of the step `start` on the questions of another step."""
        args = self.args
        settings = {"seed": args.seed, "steps": args.grpo_steps, "set": args.grpo_set}

        def work(folder: Path) -> dict[str, Any]:
            model = {"sft": self.sft_model, "base": self.base}[start].resolve()
            print(f"{name}: training with veRL, Ray, FSDP and vLLM; log: {folder / 'train.log'}")
            with self.retriever(folder) as url:
                overrides = [
                    f"actor_rollout_ref.model.path={hydra_quoted(model)}",
                    f"data.train_files={hydra_quoted(self.out / questions / 'train.parquet')}",
                    f"data.val_files={hydra_quoted(self.out / 'world' / 'val.parquet')}",
                    f"rag_r1.retriever.url={url}",
                    *grpo_overrides(args),
                ]
                stages = StagesArguments(recipe=["demo/grpo"], out=folder, overrides=overrides)
                command = [sys.executable, "-m", "rag_r1.training.stages", *stages.to_argv()]
                train(command, folder, args.timeout)
            return {"model": self.trained(name).relative_to(folder).as_posix()}

        return Step(name, settings, work, ("stage1/finished", "stage1/trajectories"), (start, questions))

    def _evaluation(self) -> Step:
        """Make the step in which all models play the held-out questions."""
        args = self.args

        def work(folder: Path) -> dict[str, Any]:
            from rag_r1.demo.pipeline.evaluation import evaluate

            data = demo_data(args.seed, args.questions, args.held_out)
            evaluate(folder, self.models, self.protocol, data.val, data.passages, BUDGET, TOPK)
            return {"models": list(self.models)}

        names = ["base", "sft", *self.trainings]
        return Step("evaluation", {"models": names}, work, ("scores.json",), ("world", *names))

    def _episode_arguments(
        self, folder: Path, prompt: Path, budget: Budget, retriever: str
    ) -> dict[str, Any]:
        """Return the arguments that `rag-r1 traces` and `rag-r1 filter` have in common."""
        return {
            "questions": [self.out / "world" / "train.parquet"],
            "out": folder,
            "protocol": self.args.protocol,
            "prompt": str(prompt),
            "retriever_url": retriever,
            "seed": self.args.seed,
            "max_prompt_tokens": budget.max_prompt_tokens,
            "max_response_tokens": budget.max_response_tokens,
            "in_flight": CONCURRENCY,
            "overrides": agent_keys(budget),
        }
