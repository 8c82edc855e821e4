"""Checks the sources of `rag-r1 index serve` before anything is loaded, and opens the port and the recording.

The checks that take no more than seconds come first, and all their problems are reported at once: every
manifest with the sizes of the index's files, the encoder, the cross-encoder, the pages, the recording, the
port, and whether anything answers at the address of the Ray cluster. Then the server gets what it needs from
elsewhere: models from the Hugging Face Hub, and the connection to Ray. The port and the recording stay open
for the server.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_server.cluster.ray_options import RayOptions, check_cluster
from retrieval_server.encode.model_folder import check_model, check_weights, is_hub_name, resolve_model
from retrieval_server.encode.options import check_device
from retrieval_server.errors import UserError, check_all
from retrieval_server.extras import MODEL, SERVER, are_installed, require_packages
from retrieval_server.folder.manifest import VERIFY_UP_TO, Manifest, check_files
from retrieval_server.folder.shard_set import IndexFolder, read_shards
from retrieval_server.search.options import OpenOptions
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.http.listener import listen

if TYPE_CHECKING:
    from retrieval_server.cluster.ray_serve import RayServe
    from retrieval_server.search.reranker import Reranker
    from retrieval_server.web.source import WebSource

#: The environment variable with the token that clients must send.
TOKEN_VARIABLE = "RETRIEVAL_TOKEN"


@dataclass(frozen=True)
class LocalSources:
    """The results of the quick checks."""

    #: The shards of each index, in the order of the folders.
    shards: list[list[IndexFolder]]
    web: WebSource | None
    #: The open socket of the port.
    listener: socket.socket


@dataclass
class ServedSources:
    """The sources of a server, checked as far as possible without loading them, and its port.

    As a context manager it closes the port and the connection to Ray. The app, if one is started, closes the
    web engine.
    """

    #: The shards of each index by its name; a list of one for an index that is not split.
    shards: dict[str, list[IndexFolder]]
    web: WebSource | None
    ray: RayServe | None
    reranker: Reranker | None
    #: The open socket of the port.
    listener: socket.socket

    def __enter__(self) -> ServedSources:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        if self.ray is not None:
            self.ray.close()


def check_sources(command: ServeCommand) -> ServedSources:
    """Read all manifests, open the recording and the port, fetch models, and connect to Ray.

    Raises UserError, or UserErrors with all problems of the quick checks.
    """
    require_packages("A server", "bm25", SERVER)
    folders = command.folders
    with ExitStack() as resources:
        local = _local_checks(command, folders.values(), resources)
        shards = dict(zip(folders, local.shards, strict=True))
        _fetch_models(command, shards)
        ray = None
        # --check-only tries to connect to a cluster, but does not start a local Ray for nothing.
        if command.serve == "ray" and not (command.check_only and command.ray.ray_address == "local"):
            from retrieval_server.cluster.ray_serve import RayServe

            ray = RayServe(command.ray, list(folders.values()))
        resources.pop_all()
    reranker = None
    if command.rerank.rerank:
        from retrieval_server.search.reranker import Reranker

        reranker = Reranker(command.rerank.rerank, command.search.device)
    return ServedSources(shards, local.web, ray, reranker, local.listener)


def _local_checks(command: ServeCommand, folders: Iterable[Path], resources: ExitStack) -> LocalSources:
    """Run the quick checks, which open the port and the recording, and return their results.

    Leaving `resources` closes both. Raises UserError, or UserErrors with all problems.
    """
    # The results are in the order of the checks: one for each folder, then the others. The last two are None.
    *shards, web, listener, _, _ = check_all(
        *(partial(_check_index, command, folder) for folder in folders),
        partial(_open_web, command, resources),
        lambda: resources.enter_context(listen(command.host, command.port)),
        partial(_check_rerank, command.rerank.rerank),
        partial(_check_other_options, command),
    )
    return LocalSources(shards, web, listener)


def check_locally(command: ServeCommand) -> None:
    """Raise UserError, or UserErrors, with all problems of the quick checks. Nothing is left open.

    The command may be partial (`command_line.parse`). Then its options may contradict each other.
    """
    require_packages("A server", "bm25", SERVER)
    with ExitStack() as resources:
        folders = dict.fromkeys(folder for _, folder in command.index)  # even if two have the same name
        checked = command.model_copy(update={"check_only": True})
        _local_checks(checked, folders, resources)


def _check_index(command: ServeCommand, folder: Path) -> list[IndexFolder]:
    """Return the shards of an index, or the index itself. Raises UserError if it cannot be served."""
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
        flags = _parts_of(command.search)
        checks += [partial(_refuse_missing_part, flag, folder, manifest) for flag in flags]
        if (name := _encoder_of(command, manifest)) and not is_hub_name(name):
            assert manifest.dense is not None  # it has an encoder
            encoder = command.search.encoder
            checks.append(partial(check_model, manifest.dense.encoder, encoder, VERIFY_UP_TO))
    check_all(*checks)
    return shards


def _parts_of(options: OpenOptions) -> Iterator[tuple[str, str]]:
    """Yield each flag that sets how a part of FAISS's indexes is searched, with the name of the part."""
    if options.nprobe is not None:
        yield f"--nprobe {options.nprobe}", "IVF"
    if options.ef_search is not None:
        yield f"--ef-search {options.ef_search}", "HNSW"


def _refuse_missing_part(flag: tuple[str, str], folder: Path, manifest: Manifest) -> None:
    """Raise UserError if a dense index lacks the part. Of an imported one, only the loaded file may tell."""
    text, part = flag
    factory = "" if manifest.dense is None else manifest.dense.factory
    if re.match(r"Flat|HNSW\d|IVF\d", factory) and part not in factory:
        raise UserError(f"{text}: {folder} has no {part} part, but is {factory}: leave it out.")


def _encoder_of(command: ServeCommand, manifest: Manifest) -> str | None:
    """Return the name of the encoder that this process will load for an index, or None."""
    if manifest.dense is None or command.search.backend or command.serve != "here":
        return None
    return command.search.encoder or manifest.dense.encoder.name


def _open_web(command: ServeCommand, resources: ExitStack) -> WebSource | None:
    """Return the opened web engine of the options; None if they name none. Raises UserError.

    A recording that `--check-only` has created is removed.
    """
    if not command.web.web:
        return None
    from retrieval_server.web.source import open_web

    record = command.web.record
    is_new = record is not None and not os.path.exists(record)  # unlike that of Path it raises no error
    try:
        web = open_web(command.web)
    finally:  # also if the engine cannot be used for another reason
        if command.check_only and is_new and record is not None:
            with suppress(OSError):  # it may not have been created
                record.unlink()
    resources.callback(web.discard)
    return web


def _check_rerank(name: str | None) -> None:
    """Raise UserError if the cross-encoder cannot be used. A Hub name is not looked up."""
    if name:
        require_packages("--rerank", "retrieval", MODEL)
        if not is_hub_name(name):
            check_weights(resolve_model(name, "--rerank")[1], "--rerank")


def _check_other_options(command: ServeCommand) -> None:
    """Raise UserError for options that cannot be used: token, files, back end, device, encoder or cluster.

    A device is checked even if no index has an encoder, since a reload may bring one, but only if this
    process may use it.
    """
    from retrieval_server.server.pages import check_pages

    checks: list[Callable[[], object]] = [_check_token]
    if command.pages is not None:
        checks.append(partial(check_pages, command.pages))
    if (backend := command.search.backend) is not None:
        from retrieval_server.search.custom_backend import import_factory

        checks.append(partial(import_factory, backend))
    if (root := command.reload_root) is not None:
        checks.append(partial(_check_folder, root))
    if (command.serve == "here" or command.rerank.rerank) and are_installed(MODEL):
        checks.append(partial(check_device, command.search.device))
    if command.search.encoder is not None:
        checks.append(partial(_refuse_unused_encoder, [folder for _, folder in command.index]))
    if command.serve == "ray":
        checks.append(partial(check_cluster, command.ray.ray_address))
    else:
        checks.append(partial(_refuse_unused_ray, command.ray))
    check_all(*checks)


def token_text() -> str:
    """Return the token in the environment without white space around it, or an empty text."""
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def _check_token() -> None:
    """Raise UserError for a token that a header cannot contain. The message does not repeat the token."""
    token = token_text()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(
            f"${TOKEN_VARIABLE} has characters that a token cannot have. Use ASCII letters, digits and "
            "signs, as `openssl rand -hex 32` prints them."
        )


def _refuse_unused_ray(options: RayOptions) -> None:
    """Raise UserError if an option of Ray is set, which has no effect without --serve ray."""
    default = RayOptions()
    names = [name for name in RayOptions.model_fields if getattr(options, name) != getattr(default, name)]
    if names:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        text = f"without --serve ray, nothing runs on Ray: add it, or leave out {flags}."
        raise UserError(text, "--serve")


def _refuse_unused_encoder(folders: Sequence[Path]) -> None:
    """Raise UserError if all these indexes can be read and none of them has an encoder."""
    try:
        manifests = {folder: read_shards(folder)[0].manifest for folder in folders}
    except UserError:  # an index that cannot be read has its own message, and may have an encoder
        return
    if not any(manifest.dense for manifest in manifests.values()):
        kinds = [f"{folder} is {manifest.backend}" for folder, manifest in manifests.items()]
        found = ", ".join(kinds) or "there is no index"
        raise UserError(f"--encoder is for dense indexes, and {found}: leave it out.")


def _check_folder(root: Path) -> None:
    """Raise UserError if the folder does not exist."""
    if not os.path.isdir(root):
        raise UserError(f"--reload-root {root}: no such folder. Give the one that holds the indexes.")


def _fetch_models(command: ServeCommand, shards: dict[str, list[IndexFolder]]) -> None:
    """Fetch the models that are named by their Hub names. Raises UserError if one cannot be fetched."""
    pairs = [(_encoder_of(command, folders[0].manifest), "--encoder") for folders in shards.values()]
    pairs.append((command.rerank.rerank, "--rerank"))
    models = {name: flag for name, flag in pairs if name and is_hub_name(name)}
    check_all(*(partial(resolve_model, name, flag) for name, flag in models.items()))
