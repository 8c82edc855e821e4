"""The checks of `rag-r1 index serve`, which leave the port and the recording open for it.

First come the checks that need this machine alone, all of them at once: every manifest with the sizes of the
index's files, the encoder, the cross-encoder, the pages, the recording, and the port, which is open from then
on. Then comes what is needed from elsewhere: models of the Hugging Face Hub, the Ray cluster. Nothing is
loaded here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_server.encode.model_folder import check_model, check_weights, is_hub_name, resolve_model
from retrieval_server.errors import UserError, check_all
from retrieval_server.extras import MODEL, SERVER, require_packages
from retrieval_server.folder.manifest import VERIFY_UP_TO, Manifest, check_files
from retrieval_server.folder.shard_set import IndexFolder, read_shards
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.http.listener import listen

if TYPE_CHECKING:
    from retrieval_server.cluster.ray_serve import RayServe
    from retrieval_server.search.reranker import Reranker
    from retrieval_server.web.source import WebSource


@dataclass
class ServedSources:
    """The sources of a server, checked as far as possible without loading them, and its port.

    As a context manager it closes the port, and Ray.
    """

    shards: dict[str, list[IndexFolder]]
    web: WebSource | None
    ray: RayServe | None
    reranker: Reranker | None
    listener: socket.socket

    def __enter__(self) -> ServedSources:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        if self.ray is not None:
            self.ray.close()


def check_sources(command: ServeCommand) -> ServedSources:
    """Read all manifests, open the recording and the port, connect to Ray. Raises UserError, or UserErrors
    with all that is wrong on this machine."""
    require_packages("A server", "bm25", SERVER)
    folders = command.folders
    with ExitStack() as resources:
        *shards, web, listener, _, _ = _local_checks(command, folders.values(), resources)
        by_name = dict(zip(folders, shards, strict=True))
        _fetch_models(command, by_name)
        ray = None
        # In a check a cluster is tried; a Ray of the server's own would be started for nothing.
        if command.serve == "ray" and not (command.check_only and command.ray.ray_address == "local"):
            from retrieval_server.cluster.ray_serve import RayServe

            ray = RayServe(command.ray, list(folders.values()))
        resources.pop_all()
    reranker = None
    if command.rerank.rerank:
        from retrieval_server.search.reranker import Reranker

        reranker = Reranker(command.rerank.rerank, command.search.device)
    return ServedSources(by_name, web, ray, reranker, listener)


def _local_checks(command: ServeCommand, folders: Iterable[Path], resources: ExitStack) -> list[Any]:
    """The results of the checks that need this machine alone: of each index, the web engine, the port and
    the other files. Raises UserError. The port is closed with `resources`."""
    return check_all(
        *(partial(_check_index, command, folder) for folder in folders),
        partial(_open_web, command),
        lambda: resources.enter_context(listen(command.host, command.port)),
        partial(_check_rerank, command.rerank.rerank),
        partial(_check_files, command),
    )


def check_locally(command: ServeCommand) -> None:
    """Raises UserError, or UserErrors, with all that is wrong on this machine; leaves nothing open."""
    require_packages("A server", "bm25", SERVER)
    with ExitStack() as resources:
        folders = dict.fromkeys(folder for _, folder in command.index)  # also two of one name
        _local_checks(command.model_copy(update={"check_only": True}), folders, resources)


def _check_index(command: ServeCommand, folder: Path) -> list[IndexFolder]:
    """The shards of an index, or the index itself. Raises UserError if it cannot be served."""
    from retrieval_server.search.hybrid import read_members
    from retrieval_server.search.index_source import require_libraries

    shards = read_shards(folder)
    in_process = command.serve == "here"
    if len(shards) > 1 and in_process:
        raise UserError(f"{folder}: an index in shards: serve it with --serve ray.")
    checks = [partial(check_files, shard.path, shard.manifest, verify=False) for shard in shards]
    manifest = shards[0].manifest
    if in_process:
        checks.append(partial(require_libraries, manifest, command.search))
        checks.append(partial(read_members, folder, manifest, verify=False))
        if (name := _encoder_of(command, manifest)) and not is_hub_name(name):
            assert manifest.dense is not None  # it has an encoder
            encoder = command.search.encoder
            checks.append(partial(check_model, manifest.dense.encoder, encoder, VERIFY_UP_TO))
    check_all(*checks)
    return shards


def _encoder_of(command: ServeCommand, manifest: Manifest) -> str | None:
    """The name of the encoder that this process will load for an index; None if it loads none."""
    if manifest.dense is None or command.search.backend or command.serve != "here":
        return None
    return command.search.encoder or manifest.dense.encoder.name


def _open_web(command: ServeCommand) -> WebSource | None:
    """The web engine of the options, if any; a recording that only this check made is removed."""
    if not command.web.web:
        return None
    from retrieval_server.web.source import open_web

    record = command.web.record
    is_new = record is not None and not record.exists()
    web = open_web(command.web)
    if command.check_only and is_new and record is not None:
        record.unlink()
    return web


def _check_rerank(name: str | None) -> None:
    """Raises UserError if the cross-encoder is not usable; a name on the Hub is not looked up."""
    if name:
        require_packages("--rerank", "retrieval", MODEL)
        if not is_hub_name(name):
            check_weights(resolve_model(name, "--rerank")[1], "--rerank")


def _check_files(command: ServeCommand) -> None:
    """Raises UserError if the pages, the custom back end or the reload root cannot be used."""
    from retrieval_server.server.pages import check_pages

    checks = []
    if command.pages is not None:
        checks.append(partial(check_pages, command.pages))
    if (backend := command.search.backend) is not None:
        from retrieval_server.search.custom_backend import import_factory

        checks.append(partial(import_factory, backend))
    if (root := command.reload_root) is not None:
        checks.append(partial(_check_folder, root))
    check_all(*checks)


def _check_folder(root: Path) -> None:
    """Raises UserError if there is no such folder."""
    if not root.is_dir():
        raise UserError(f"--reload-root {root}: no such folder. Give the one that holds the indexes.")


def _fetch_models(command: ServeCommand, shards: dict[str, list[IndexFolder]]) -> None:
    """Fetch models from the Hub, before the start: without them the server cannot start. Raises UserError."""
    encoders = [_encoder_of(command, folders[0].manifest) for folders in shards.values()]
    models = dict.fromkeys(name for name in (*encoders, command.rerank.rerank) if name and is_hub_name(name))
    check_all(*(partial(resolve_model, name) for name in models))
