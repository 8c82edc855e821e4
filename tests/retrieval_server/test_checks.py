"""What is wrong on this machine is reported all at once, before any work, by every command."""

from __future__ import annotations

import errno
import gzip
import shutil
import socket
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from retrieval_server import commands
from retrieval_server.errors import UserError, UserErrors, check_all
from retrieval_server.folder.manifest import MANIFEST

from .builders import edit_json


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def refused(capsys, *words: object) -> str:
    """What a command says that does not start, and so prints nothing else."""
    assert commands.main(list(map(str, words))) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def missing(message: str, named: list[object]) -> list[object]:
    """What a message does not name."""
    return [name for name in named if str(name) not in message]


def test_serve_reports_all_problems_at_once(bm25_index, dense_index, tiny_bge, taken, tmp_path, capsys):
    unfinished, changed, other = tmp_path / "unfinished", tmp_path / "changed", tmp_path / "other-model"
    unfinished.mkdir()
    shutil.copytree(bm25_index, changed)
    (changed / "passages.arrow").unlink()
    shutil.copytree(tiny_bge, other)
    edit_json(other / "config.json", lambda config: config.update(hidden_dropout_prob=0.5))
    (tmp_path / "pages.jsonl").write_text('{"url": "u", "contents": "c"}\n{"url": "u"}\n')
    indexes = {"a": tmp_path / "absent", "b": unfinished, "c": changed, "d": dense_index}
    message = refused(
        capsys,
        "serve",
        *(word for name, folder in indexes.items() for word in ("--index", f"{name}={folder}")),
        *("--encoder", other, "--rerank", tmp_path / "no-model", "--pages", tmp_path / "pages.jsonl"),
        *("--web", "serper", "--replay", tmp_path / "no-recording", "--port", taken),
        *("--reload-root", tmp_path / "no-root"),
    )
    named = [tmp_path / "absent", MANIFEST, changed / "passages.arrow", f"{other}: encoder sha256"]
    named += [
        "--rerank",
        "pages.jsonl, line 2",
        "no-recording",
        "--reload-root",
        f"port {taken} of 127.0.0.1",
    ]
    assert missing(message, named) == [] and "9 problems" in message


def test_a_corpus_that_may_not_be_read_is_named(tmp_path, monkeypatch, capsys):
    denied = PermissionError(errno.EACCES, "Permission denied", "secret.jsonl")
    monkeypatch.setattr("retrieval_server.indexing.checks.check_first_rows", Mock(side_effect=denied))
    words = ("build", "--backend", "bm25", "--corpus", "secret.jsonl", "--out", tmp_path / "index")
    assert "cannot use secret.jsonl: Permission denied; check the rights" in refused(capsys, *words)


CORPORA = ("absent.jsonl", "notes.txt", "rows.jsonl", "cut.jsonl.gz")
#: Of each command: its words, where PATH/ is a folder with the files below, and what must be named. An encode
#: has no more than its parts, its part and its encoder, a merge its parts and its folder, and a split its
#: index, its folder and its number.
PLANTED = {
    "build": ("--backend bm25 --out PATH/taken --corpus CORPORA", ["PATH/taken", *CORPORA]),
    "build dense": (
        "--backend dense --out PATH/taken --corpus PATH/absent.jsonl PATH/rows.jsonl --factory Flatt "
        "--encoder PATH/no-model --recall-queries PATH/no-queries",
        ["PATH/taken", "absent.jsonl", "rows.jsonl, line 2", "no-model", "--factory Flatt", "no-queries"],
    ),
    "build hybrid": (
        "--backend hybrid --out PATH/taken --of PATH/a --of PATH/b --of PATH/c --of PATH/rows.jsonl",
        ["PATH/taken", "PATH/a", "PATH/b", "PATH/c", "rows.jsonl"],
    ),
    "build passages": ("--parts PATH/prepared --corpus CORPORA", ["corpus.json exists", *CORPORA]),
    "build encode": (
        "--parts PATH/none --part 3/2 --encoder PATH/no-model",
        ["PATH/none", "--part 3/2", "no-model"],
    ),
    "build merge": ("--parts PATH/none --out PATH/taken", ["PATH/none", "PATH/taken"]),
    "import": (
        "--embeddings PATH/no.npy PATH/notes.txt --out PATH/taken --corpus PATH/absent.jsonl "
        "--encoder PATH/no-model",
        ["no.npy", "--embeddings PATH/notes.txt", "PATH/taken", "absent.jsonl", "no-model"],
    ),
    "split": ("--index PATH/none --out PATH/taken --shards 0", ["PATH/none", "PATH/taken", "--shards 0"]),
}


def planted(name: str, folder: Path) -> tuple[list[str], list[object]]:
    """The words of a command of PLANTED, for which the files lie in the folder, and what must be named."""
    (folder / "taken").mkdir()
    (folder / "prepared").mkdir()
    (folder / "prepared" / "corpus.json").touch()
    (folder / "notes.txt").touch()
    (folder / "rows.jsonl").write_text('{"id": "1", "contents": "Ulm"}\n{"id": "2"}\n')
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": "1", "contents": "Ulm"}\n')[:-9])
    words, named = PLANTED[name]
    words = words.replace("CORPORA", " ".join(f"PATH/{corpus}" for corpus in CORPORA))
    command, *step = name.split()
    step = [] if step in (["dense"], ["hybrid"]) else step
    words = words.replace("PATH", str(folder)).split()
    return [command, *step, *words], [word.replace("PATH", str(folder)) for word in named]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("check_only", [(), ("--check-only",)], ids=["work", "check-only"])
def test_planted_problems_are_reported_in_one_run_and_nothing_is_written(name, check_only, tmp_path, capsys):
    words, named = planted(name, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    message = refused(capsys, *words, *check_only)
    assert missing(message, named) == []
    assert f"{len(named)} problems" in message and sorted(tmp_path.rglob("*")) == before


#: A file of an encoder's folder, and what is in it instead; None: it is removed.
BROKEN_ENCODERS = {
    "no weights": ("model.safetensors", None),
    "a pointer of Git LFS": ("model.safetensors", b"version https://git-lfs.github.com/spec/v1"),
    "a shard is missing": ("model.safetensors.index.json", b'{"weight_map": {"a": "model-2.safetensors"}}'),
    "a shard without a name": ("model.safetensors.index.json", b'{"weight_map": {"a": "\\u0000"}}'),
    "one outside": ("model.safetensors.index.json", b'{"weight_map":{"a":"../encoder/model.safetensors"}}'),
    "no tokenizer": ("*[tv]o[kc]*", None),
    "a type that transformers does not know": ("config.json", b'{"model_type": "brt"}'),
}


@pytest.mark.parametrize("name", BROKEN_ENCODERS)
@pytest.mark.parametrize("step", ["build --backend dense", "import --embeddings PATH/v.npy"])
def test_an_encoder_whose_files_are_not_whole_is_refused_before_the_work(
    step, name, tiny_bge, corpus, tmp_path, capsys
):
    encoder = shutil.copytree(tiny_bge, tmp_path / "encoder")
    pattern, content = BROKEN_ENCODERS[name]
    for file in encoder.glob(pattern) if content is None else [encoder / pattern]:
        file.unlink() if content is None else file.write_bytes(content)
    np.save(tmp_path / "v.npy", np.zeros((1, 32), np.float32))
    words = f"{step} --corpus {corpus} --out PATH/out --encoder {encoder} --check-only"
    message = refused(capsys, *words.replace("PATH", str(tmp_path)).split())
    assert str(encoder) in message and "Fetch the whole model" in message and "problems" not in message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("build --backend bm25 --out PATH/x --corpus PATH/empty.jsonl", "empty.jsonl: no passage in it"),
        ("build --backend bm25 --out PATH/x/.. --corpus PATH/c.jsonl", "x/.. has no name of its own"),
        ("build --backend bm25 --out PATH/loop/x --corpus PATH/c.jsonl", "loop is a link to nothing"),
        ("build --backend bm25 --out PATH/x --corpus PATH/twice.jsonl", "line 2 have the same id '1'"),
        ("build --backend bm25 --out PATH/x --corpus PATH/twice.jsonl", "line 3: neither"),
        ("build --backend bm25 --out PATH/x --corpus PATH/no.tsv --corpus PATH/c.jsonl", "no.tsv: no such"),
        ("build --backend bm25 --out PATH/x --corpus PATH/c.jsonl --corpus PATH/./c.jsonl", "given twice"),
        (
            "build --backend bm25 --out PATH/x --corpus PATH/wide.jsonl",
            "wide.jsonl | iconv -f UTF-16 -t UTF-8",
        ),
        ("build --backend bm25 --out PATH/x --corpus PATH/no_mark.jsonl", "is not UTF-8 but UTF-16LE"),
        ("build --backend dense --device tpu DENSE", "--device tpu"),
        ("build --backend bm25 --corpus PATH/c.jsonl --out PATH/LONG", "too long; give a shorter name"),
        ("build --backend dense DENSE --encoder ~nobody-here/model", "~nobody-here/model: no such folder"),
        ("serve --port 0 --index PATH/LONG", "cannot be read (File name too long)"),
        ("serve WEB --record PATH/LONG --reload-root PATH/LONG", "cannot be opened (File name too long)"),
        ("build --backend dense --recall-queries PATH/utf16 DENSE", "utf16: it is not UTF-8 text"),
        ("import --embeddings PATH/none.npy DENSE", "no vector in it"),
        ("import --embeddings PATH/int.npy DENSE", "of int64"),
        ("serve WEB --replay PATH/recording", "line 1 is not a recorded answer (it has no 'documents')"),
        ("serve WEB --replay PATH/none --record PATH/x", "SERPER_API_KEY"),
        ("serve WEB --replay PATH/none --record PATH/x", "none: cannot be opened"),
        ("serve WEB --record PATH/x", "SERPER_API_KEY"),
        ("serve WEB --replay PATH/none --rerank PATH/empty", "empty: no weights in it"),
        ("serve WEB --replay PATH/none --encoder PATH/empty", "and there is no index: leave it out"),
        ("serve RAY nohost:1", "--ray-address nohost:1: nothing answers there ("),
        ("serve RAY head..x:1", "--ray-address head..x:1: nothing answers there ("),
        ("serve WEB --replay PATH/none --ray-address auto --replica-cpus 2", "--ray-address, --replica-cpus"),
        ("serve RAY head", "--ray-address head: give local, auto or the HOST:PORT"),
        ("serve RAY head:65536", "--ray-address head:65536: give local, auto or the HOST:PORT"),
    ],
)
def test_a_check_names_what_the_work_would_refuse(words, named, tiny_bge, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "Ulm"}\n')
    (tmp_path / "twice.jsonl").write_text('{"id": "1", "contents": "Ulm"}\n' * 2 + '{"id": "2"}')
    (tmp_path / "utf16").write_text("Ulm", encoding="utf-16")
    (tmp_path / "wide.jsonl").write_text('{"id": "1", "contents": "Ulm"}\n', encoding="utf-16")
    (tmp_path / "no_mark.jsonl").write_text('{"id": "1", "contents": "Ulm"}\n', encoding="utf-16-le")
    (tmp_path / "recording").write_text('{"query": "Ulm"}\n')
    np.save(tmp_path / "none.npy", np.zeros((0, 32), np.float32))
    np.save(tmp_path / "int.npy", np.zeros((1, 32), np.int64))
    dense = f"--encoder {tiny_bge} --out PATH/x --corpus PATH/c.jsonl"
    words = words.replace("DENSE", dense).replace("WEB", "--web serper --port 0").replace("LONG", "x" * 256)
    words = words.replace("RAY", "--port 0 --index PATH/none --serve ray --ray-address")
    message = refused(capsys, *words.replace("PATH", str(tmp_path)).split(), "--check-only")
    assert named in message and not (tmp_path / "x").exists()


def test_a_start_that_is_refused_gives_its_recording_back(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    words = f"serve --web serper --port 0 --record {tmp_path}/run.jsonl --reload-root {tmp_path}/none".split()
    assert refused(capsys, *words) == refused(capsys, *words)


@pytest.mark.parametrize("command", ["build", "serve"])
def test_all_wrong_flags_are_reported_in_one_run(command, capsys):
    words = {
        "build": "--backend bm26 --batch-size x --k1 -1 --b 2 --stemmer german --out o --ovrewrite",
        "serve": "--port 99999 --topk x --max-batch 0 --serve there --deadline -1 --indx i --host= "
        "--allowed-host http://a",
    }[command].split()
    with pytest.raises(SystemExit) as ended:
        commands.main([command, *words])
    message = capsys.readouterr().err.replace(":", " ").replace(";", " ")
    flags = {word.rstrip("=") for word in words if word.startswith("--")} - {
        "--out"
    }  # whole words: not --b of --backend
    assert ended.value.code == 2 and flags <= {*message.split()} and "did you mean --" in message


@pytest.mark.parametrize(
    "words", ["build", "build passages", "build encode --encoder absent.jsonl", "import"]
)
def test_a_missing_flag_hides_no_missing_file(words, capsys):
    with pytest.raises(SystemExit):
        commands.main([*words.split(), "--corpus", "absent.jsonl"])
    message = capsys.readouterr().err
    assert "needs --" in message and "absent.jsonl: no such" in message


@pytest.mark.parametrize("more", [[], ["--out", "new", "--corpus", "c.jsonl"]])
def test_a_contradiction_hides_no_wrong_folder_of_a_hybrid(more, tmp_path, capsys):
    with pytest.raises(SystemExit):
        commands.main(["build", "--backend", "hybrid", "--of", str(tmp_path / "none"), *more])
    assert missing(capsys.readouterr().err, ["and no corpus", tmp_path / "none", "2 problems"]) == []


def test_a_step_of_a_hybrid_is_named_and_nothing_that_was_given(tmp_path, capsys):
    folders = [f"--{flag}={tmp_path / name}" for flag, name in (("of", "a"), ("of", "b"), ("out", "new"))]
    with pytest.raises(SystemExit):
        commands.main(["build", "merge", "--backend", "hybrid", *folders])
    errors = capsys.readouterr().err
    assert "merge is a step of a dense index; hybrid" in errors and "needs --of" not in errors


def test_a_token_that_a_header_cannot_contain_is_named_and_not_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "my secret")
    message = refused(capsys, "serve", "--port", "0", "--index", tmp_path / "none", "--check-only")
    assert missing(message, ["$RETRIEVAL_TOKEN", "none", "2 problems"]) == [] and "secret" not in message


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            "build --backend bm25 --nprobe 3 --batch-size 64 --depth 5 {new}",
            "--nprobe, --batch-size, --depth",
        ),
        ("build --backend bm25 --k1 2 --skip-bad-rows {new}", None),
        ("build --backend dense --k1 2 --encoder {bge} {new}", "--k1"),
        ("build passages --parts {path}/parts {new} --pooling cls", "--out, --pooling"),
        ("serve --port 0 --index {bm25} --nprobe 9 --rerank-depth 20", "--nprobe, --rerank-depth"),
        ("serve --port 0 --index a={bm25} --index b={dense} --search-threads 1", None),
    ],
)
def test_flags_that_have_no_effect_are_named_in_a_warning(
    words, flags, corpus, bm25_index, dense_index, tiny_bge, tmp_path, capsys, caplog
):
    new = f"--corpus {corpus} --out {tmp_path}/new"
    words = words.format(new=new, path=tmp_path, bm25=bm25_index, dense=dense_index, bge=tiny_bge)
    assert commands.main([*words.split(), "--check-only"]) == 0
    told = capsys.readouterr().err + caplog.text
    assert f"{flags}: no effect" in told if flags else "no effect" not in told


def test_a_search_of_more_cells_than_an_index_has_is_a_warning_and_of_none_is_refused(
    dense_index, tmp_path, capsys
):
    words = ["serve", "--port", "0", "--nprobe", "9", "--check-only", "--index"]
    assert "--nprobe 9: " in (said := refused(capsys, *words, dense_index)) and "no IVF part" in said
    copy = shutil.copytree(dense_index, tmp_path / "ivf")
    edit_json(copy / MANIFEST, lambda manifest: manifest["dense"].update(factory="IVF4,Flat"))
    assert commands.main([*words, str(copy)]) == 0
    assert "--nprobe 9: default has 4 cells: give at most 4" in capsys.readouterr().err


def test_the_value_of_an_unknown_flag_is_no_wrong_step(corpus, tmp_path, capsys):
    words = ["--corpus", str(corpus), "--out", str(tmp_path / "new"), "--backend", "bm25"]
    with pytest.raises(SystemExit):
        commands.main(["build", "--threads", "x", *words])
    said = capsys.readouterr().err
    assert "error: unrecognized arguments: --threads\n" in said and "step" not in said
    with pytest.raises(SystemExit):
        commands.main(["build", "encod", "--overwrite", *words])
    assert "step must be" in capsys.readouterr().err, "what is no flag's value is still a step"


def test_two_indexes_without_names_are_both_checked(tmp_path, capsys):
    with pytest.raises(SystemExit):
        commands.main(["serve", "--index", str(tmp_path / "one"), "--index", str(tmp_path / "two")])
    assert missing(capsys.readouterr().err, ["two indexes", tmp_path / "one", tmp_path / "two"]) == []


def test_a_folder_without_a_corpus_is_named_with_the_remedy(tmp_path, capsys):
    words = ["build", "--corpus", tmp_path, "--out", tmp_path / "new", "--backend", "bm25"]
    assert missing(refused(capsys, *words), [tmp_path, "Give --corpus the folder"]) == []


def test_an_unknown_backend_is_one_fault_and_an_index_no_corpus(corpus, bm25_index, tmp_path, capsys):
    words = ["build", "--out", str(tmp_path / "new"), "--backend"]
    with pytest.raises(SystemExit):
        commands.main([*words, "bm26", "--corpus", str(corpus)])
    message = capsys.readouterr().err
    assert "--backend" in message and "problems" not in message
    words[1:1] = ["--corpus", str(bm25_index)]
    assert f"{bm25_index} is an index" in refused(capsys, *words, "bm25")


def test_check_only_of_a_build_writes_nothing(corpus, bm25_index, tmp_path, capsys):
    out = tmp_path / "index"
    build = ["build", "--backend", "bm25", "--corpus", str(corpus), "--out", str(out)]
    split = ["split", "--index", str(bm25_index), "--shards", "2", "--out", str(out)]
    passages = ["build", "passages", "--corpus", str(corpus), "--parts", str(out), "--out", "elsewhere"]
    for words in (build, split, passages):
        assert commands.main([*words, "--check-only"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("all checks passed") and str(out) in line and not list(tmp_path.iterdir())


def test_an_encoder_is_refused_only_where_no_index_has_one(bm25_index, dense_index, tiny_bge, capsys):
    words = ["--port", "0", "--encoder", tiny_bge, "--check-only", "--index", bm25_index]
    assert f"--encoder is for dense indexes, and {bm25_index} is bm25" in refused(capsys, "serve", *words)
    words += ["--index", f"d={dense_index}"]
    assert commands.main(["serve", *map(str, words)]) == 0


def test_check_only_of_serve_names_all_and_leaves_nothing(bm25_index, tmp_path, capsys, monkeypatch):
    record = tmp_path / "run.jsonl"
    words = ["--index", str(bm25_index), "--port", "0", "--web", "searxng", "--record", str(record)]
    monkeypatch.setenv("SEARXNG_URL", "http://127.0.0.1:9")
    assert commands.main(["serve", "--check-only", *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("all checks passed") and str(bm25_index) in line and not record.exists()


def test_all_checks_are_made_and_errors_that_are_no_users_pass():
    def fails(text: str):
        raise UserError(text)

    def fails_twice():
        check_all(lambda: fails("one"), lambda: fails("two"))

    assert check_all(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(UserErrors) as error:
        check_all(fails_twice, lambda: 1, lambda: fails("two"), lambda: fails("three"))
    assert list(map(str, error.value.errors)) == ["one", "two", "three"]
    with pytest.raises(ZeroDivisionError):
        check_all(lambda: fails("one"), lambda: 1 / 0)


def test_a_lucene_build_without_bm25s_names_the_command_that_installs_it(
    corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    for name in ("bm25", "lucene"):
        monkeypatch.delitem(sys.modules, f"retrieval_server.search.{name}", raising=False)
    message = refused(capsys, "build", "--backend", "lucene", "--corpus", corpus, "--out", tmp_path / "i")
    assert "bm25s" in message and 'pip install "rag-r1[lucene]"' in message


#: Beside which the problems of PLANTED are reported too.
WRONG_VALUES = {
    "build": "--rrf-k x --none-such",
    "build dense": "--batch-size 0 --none-such",
    "build hybrid": "--depth x",
    "build passages": "--none-such",
    "build encode": "--batch-size x",
    "build merge": "--none-such",
    "import": "--batch-size x --none-such",
    "split": "--none-such",
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_and_unknown_flags_are_reported_beside_all_other_problems(name, tmp_path, capsys):
    words, named = planted(name, tmp_path)
    with pytest.raises(SystemExit) as ended:
        commands.main([*words, *WRONG_VALUES[name].split()])
    message = capsys.readouterr().err
    flags = [word for word in WRONG_VALUES[name].split() if word.startswith("--")]
    assert ended.value.code == 2 and missing(message, [*flags, *named]) == []


def test_a_wrong_or_missing_flag_of_a_split_does_not_hide_its_folders(tmp_path, capsys):
    for more in (["--shards", "x"], []):
        with pytest.raises(SystemExit):
            commands.main(["split", "--index", str(tmp_path / "none"), "--out", str(tmp_path), *more])
        message = capsys.readouterr().err
        assert missing(message, ["--shards", f"{tmp_path}/none", f"{tmp_path} exists", "3 problems"]) == []


def test_a_wrong_port_does_not_hide_an_index_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        commands.main(["serve", "--index", str(tmp_path / "none"), "--port", "abc"])
    assert missing(capsys.readouterr().err, ["--port", f"{tmp_path}/none", "2 problems"]) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--index x=a --index x=b --port 70000", ["4 problems", "--port", "two indexes are named 'x'"]),
        ("--index a --record r --web-timeout x", ["3 problems", "--web-timeout", "--record belongs to"]),
        ("--index x=a --index x=a", ["2 problems", "two indexes are named 'x'"]),
        ("--index a/b=i --index c=i/d --index e/f", ["named 'default' (a/b=i, e/f)", "of letters"]),
        ("--index x=a --index x=a --device tpu", ["3 problems", "named 'x'", "--device tpu: torch knows no"]),
        ("--web googl --record r", ["error: --web must be"]),
        (
            "--index a --serve ray --ray-address 127.0.0.1:0 --encoder-replicas x",
            ["3 problems", "--encoder-replicas", "--ray-address 127.0.0.1:0: nothing answers"],
        ),
    ],
)
def test_a_wrong_value_hides_only_problems_that_follow_from_it(words, named, capsys):
    with pytest.raises(SystemExit):
        commands.main(["serve", "--port", "0", *words.split()])
    assert missing(capsys.readouterr().err, named) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "build --backend bm25 --encoder x --part 1/2 --b 2",
            ["--b must be", "--encoder is for", "--part bel"],
        ),
        ("build --backend bm25 --corpus c --out o --k1 1e308 --b nan", ["--k1 must be at most", "'nan'"]),
        ("serve --port 0 --index =i1 --index c=", ["'=i1'", "'c='"]),
    ],
)
def test_a_wrong_value_hides_no_contradiction_and_no_other_value(words, named, capsys):
    with pytest.raises(SystemExit):
        commands.main(words.split())
    assert missing(capsys.readouterr().err, named) == []


def test_an_index_is_in_a_hybrid_once_and_a_wrong_number_of_shards_is_named_beside_the_folder(
    bm25_index, tmp_path, capsys
):
    words = ["--out", tmp_path / "new", "--of", bm25_index, "--of", bm25_index]
    assert "given twice" in refused(capsys, "build", "--backend", "hybrid", *words)
    (tmp_path / "there").mkdir()
    said = refused(capsys, "split", "--index", bm25_index, "--out", tmp_path / "there", "--shards", "999")
    assert missing(said, ["there exists", "--shards 999"]) == []


def test_vectors_that_are_not_finite_and_the_folder_of_a_run_are_named_before_the_work(
    corpus, tmp_path, capsys
):
    vectors = np.zeros((5, 4), np.float32)
    vectors[[0, 4]] = np.nan
    np.save(tmp_path / "v.npy", vectors)
    words = ["--embeddings", tmp_path / "v.npy", "--corpus", corpus, "--encoder", "minilm", "--check-only"]
    assert "row 0, 4" in refused(capsys, "import", "--out", tmp_path / "new", *words)
    (run := tmp_path / "run").mkdir()
    (run / "settings.yaml").write_text("# rag-r1 eval @x\n")
    (run / "metrics.jsonl").write_text("{}\n")
    words = ["--corpus", run, "--out", tmp_path / "new"]
    assert "run is the folder of a run" in refused(capsys, "build", "--backend", "bm25", *words)
