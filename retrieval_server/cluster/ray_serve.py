"""Searches indexes on several machines: encoders and shards run as Ray Serve deployments.

    app, engine (this process) --> encoder replicas --> every shard --> merged by score --> documents

Queue, batches, cache, limits and HTTP stay in this process. The first stage of a batch is a call to a replica
of the encoder, the second stage a call to every shard. Each encoder and each shard of an index is a separate
Ray Serve application, so that a reload can deploy new ones beside the old ones and delete those when they are
idle. All calls go through handles; Ray's HTTP proxy is not used.

Ray restarts a replica whose process dies. Calls to it are repeated until it is back or the server's deadline
has passed, so that a crash does not lose requests.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval_server.cluster.merge import merge
from retrieval_server.cluster.ray_options import RayOptions
from retrieval_server.cluster.replicas import QueryEncoder, Shard
from retrieval_server.determinism import Determinism, ProbeResult, combine_probes
from retrieval_server.errors import SearchFailedError, UserError
from retrieval_server.folder.manifest import check_files
from retrieval_server.folder.passages import Passage
from retrieval_server.folder.shard_set import IndexFolder, read_shards
from retrieval_server.search.options import OpenOptions
from retrieval_server.source import ScoredPassage, SourceDescription, StagedSource, describe_index

log = logging.getLogger(__name__)
#: Seconds between two calls to a dead replica: the first wait doubles each time, up to the longest.
_FIRST_WAIT_S = 0.05
_MAX_WAIT_S = 1.0


class ShardedSource(StagedSource):
    """An index whose stages run on Ray. `encoder` is None if the shards take the texts of the queries.

    `deadline_s` limits the seconds of a stage, `replicas` are the numbers of batches that the two stages can
    process at once, and `close` calls `on_close`.
    """

    def __init__(
        self,
        description: SourceDescription,
        encoder: Any,
        shards: Sequence[Any],
        *,
        deadline_s: float,
        replicas: tuple[int, int] = (1, 1),
        on_close: Callable[[], None] = lambda: None,
    ):
        self._description = description
        self._encoder, self._shards = encoder, list(shards)
        self._deadline_s = deadline_s
        self.encoders, self.searchers = replicas
        self._on_close = on_close
        self._probes: set[ProbeResult] = set()

    @property
    def description(self) -> SourceDescription:
        """The description for `/ready`. Its guarantee covers all encoders that have answered so far."""
        guarantee = combine_probes(self._probes) if self._probes else None
        return replace(self._description, guarantee=Determinism.BITS if self._encoder is None else guarantee)

    def warm_up(self) -> None:
        self.find(self.prepare(["warm"]), [1])

    def prepare(self, queries: Sequence[str]) -> Any:
        if self._encoder is None:
            return list(queries)
        ((vectors, probed),) = self._call_all([self._encoder], list(queries))
        self._probes.add(probed)
        return vectors

    def find(self, prepared: Any, topks: Sequence[int]) -> list[tuple[ScoredPassage, ...]]:
        answers = self._call_all(self._shards, prepared, list(topks))
        # `answers` has the hits by shard; `query_hits` are the hits of one query in every shard.
        return [
            merge([[_scored_passage(*hit) for hit in hits] for hits in query_hits], topk)
            for query_hits, topk in zip(zip(*answers, strict=True), topks, strict=True)
        ]

    def close(self) -> None:
        self._on_close()

    def _call_all(self, handles: Sequence[Any], *arguments: Any) -> list[Any]:
        """Call all handles at once and return their answers.

        Raises SearchFailedError after the deadline, and passes on errors in the replicas.
        """
        deadline = time.monotonic() + self._deadline_s
        calls = [handle.call.remote(*arguments) for handle in handles]
        return [
            self._answer(handle, call, deadline, arguments)
            for handle, call in zip(handles, calls, strict=True)
        ]

    def _answer(self, handle: Any, call: Any, deadline: float, arguments: tuple) -> Any:
        """Return the answer to `call`, which is repeated while the replica is dead.

        Raises SearchFailedError after the deadline, a time of `time.monotonic`, and passes on errors in the
        replica.
        """
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

        unavailable = (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError, ConnectionError)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return call.result(timeout_s=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                break
            except unavailable as error:
                log.warning("%s is gone (%s); asking again", handle.deployment_name, type(error).__name__)
                if time.monotonic() + wait_s >= deadline:
                    break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
            call = handle.call.remote(*arguments)
        reason = f"{handle.deployment_name} of the index does not answer"
        raise SearchFailedError(503, "shard_unavailable", reason, retry_after=5)


class RayServe:
    """The connection to Ray and the deployments of this server. Open and close it in the main thread.

    `folders` are the indexes that will be served: a Ray of the server's own gets cores for their replicas.
    Raises UserError if Ray Serve is not installed or does not start.
    """

    def __init__(self, options: RayOptions, folders: Sequence[Path]):
        try:
            import ray
            from ray import serve
        except ImportError as error:
            raise UserError(f'--serve ray needs Ray Serve ({error}): pip install "rag-r1[ray]"') from None
        self._options = options
        self._local = options.ray_address == "local"
        settings: dict[str, Any] = {"address": options.ray_address, "log_to_driver": False}
        if self._local:
            _set_worker_environment()
            cpus = sum(self._max_replicas(folder) for folder in folders) * options.replica_cpus
            # Twice as many, because old and new replicas run side by side during a reload.
            settings["num_cpus"] = max(os.cpu_count() or 1, 1 + int(2 * cpus))
            settings["include_dashboard"] = False
        try:
            ray.init(**settings, namespace="retrieval", logging_level=logging.WARNING)
            serve.start(proxy_location="Disabled")
        except Exception as error:  # Ray raises a plain Exception if its processes do not start in time
            ray.shutdown()
            address = "on this machine" if self._local else f"at {options.ray_address}"
            raise UserError(f"--serve ray: Ray does not start {address} ({error}).") from error

    def _max_replicas(self, folder: Path) -> int:
        """Return the largest number of replicas that the encoder and the shards of an index may have."""
        shards = read_shards(folder)
        encoders = self._options.encoder_replicas[1] if shards[0].manifest.dense else 0
        return encoders + len(shards) * self._options.shard_replicas[1]

    def open(
        self, folder: Path, search: OpenOptions, *, verify: bool | None, deadline_s: float
    ) -> ShardedSource:
        """Deploy the index (or the shards) in `folder` and wait until all replicas have loaded.

        `verify` is that of `check_files`, and `deadline_s` the limit of a call to the replicas. Raises
        UserError if the shards do not belong together, their back end is neither dense nor bm25, or a
        replica does not start.
        """
        from ray import serve

        shards = read_shards(folder)
        for shard in shards:
            check_files(shard.path, shard.manifest, verify=False)
        manifest = shards[0].manifest
        if manifest.backend not in ("dense", "bm25"):
            raise UserError(f"{folder}: --serve ray serves dense and bm25, not {manifest.backend}.")
        targets = self._targets(shards, search, verify)

        def delete() -> None:
            for target in targets:
                serve.delete(target.name)

        try:
            handles = serve.run_many(targets)
        except Exception as error:  # Ray raises RuntimeError for any failure in a replica
            delete()
            raise UserError(f"{folder}: a replica does not start ({error}). See the logs of Ray.") from error
        has_encoder = manifest.dense is not None
        return ShardedSource(
            describe(shards, search.dtype),
            handles[0] if has_encoder else None,
            handles[1:] if has_encoder else handles,
            deadline_s=deadline_s,
            replicas=(self._options.encoder_replicas[1], self._options.shard_replicas[1]),
            on_close=delete,
        )

    def _targets(self, shards: Sequence[IndexFolder], search: OpenOptions, verify: bool | None) -> list[Any]:
        """Return the deployments of an index: its encoder, if it has one, and then its shards."""
        from ray import serve

        options = self._options
        dense = shards[0].manifest.dense
        apps = {}
        if dense is not None:
            replicas, gpus = options.encoder_replicas, options.encoder_gpus
            encoder = self._deployment(QueryEncoder, "encoder", replicas, gpus)
            apps["encoder"] = encoder.bind(dense.encoder.model_dump(), search)
        for index, shard in enumerate(shards):
            deployment = self._deployment(Shard, f"shard-{index}", options.shard_replicas, 0.0)
            apps[f"shard-{index}"] = deployment.bind(str(shard.path.absolute()), verify, search)
        name = f"retrieval-{uuid.uuid4().hex[:8]}"
        return [serve.RunTarget(app, name=f"{name}-{part}", route_prefix=None) for part, app in apps.items()]

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if this server started it."""
        import ray
        from ray import serve

        if self._local:
            serve.shutdown()
        ray.shutdown()

    def _deployment(self, kind: type, name: str, replicas: tuple[int, int], gpus: float) -> Any:
        """Return a deployment of the class `kind`, each replica with this many GPUs."""
        from ray import serve

        fewest, most = replicas
        # A replica processes one batch at a time; if a second one waits, Ray starts another replica.
        scaling = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": 1}
        return serve.deployment(
            kind,
            name=name,
            ray_actor_options={"num_cpus": self._options.replica_cpus, "num_gpus": gpus},
            **({"autoscaling_config": scaling} if most > fewest else {"num_replicas": fewest}),
        )


def _set_worker_environment() -> None:
    """Set the environment that Ray's workers inherit, so that they import this very package."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    package_root = str(Path(__file__).resolve().parents[2])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([package_root, *paths]))


def _scored_passage(passage_id: str, text: str, url: str | None, score: float) -> ScoredPassage:
    """Return the hit whose fields a replica has sent."""
    return ScoredPassage(Passage(passage_id, text, url), score)


def describe(shards: Sequence[IndexFolder], dtype: str) -> SourceDescription:
    """Return the description of the whole index for `/ready`. `dtype` is the number format of the encoder."""
    manifest = shards[0].manifest
    return replace(
        describe_index(manifest),
        passages=sum(shard.manifest.count for shard in shards),
        corpus_sha256=manifest.shard.whole_sha256 if manifest.shard else manifest.corpus.sha256,
        query_dtype=dtype if manifest.dense else None,
    )
