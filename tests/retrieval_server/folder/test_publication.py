"""An index is published whole, and one that is replaced is never lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.hard_links import link_or_copy
from retrieval_server.folder.locks import exclusive_lock
from retrieval_server.folder.manifest import MANIFEST, read_manifest
from retrieval_server.folder.publication import check_target, work_folder

#: Replaces an index in a process that ends at its second rename, as if it were killed there.
KILLED = """
import os, sys
from pathlib import Path
from retrieval_server.folder.publication import work_folder
renames = iter((1, 2))
sys.addaudithook(lambda event, _: event == "os.rename" and next(renames) == 2 and os._exit(9))
with work_folder(Path(sys.argv[1])) as work:
    (work / "manifest.json").write_text("new")
"""


@pytest.fixture
def out(tmp_path) -> Path:
    """An index, as far as its folder goes."""
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / MANIFEST).write_text("old")
    return tmp_path / "i"


def replace(out: Path, text: str = "new") -> None:
    check_target(out, overwrite=True)
    with work_folder(out) as work:
        (work / MANIFEST).write_text(text)


def test_the_folder_takes_the_place_of_an_index_and_leaves_nothing_beside_it(out):
    shutil.copytree(out, out.with_name("i.replaced"))  # as a build leaves it that is killed after its renames
    replace(out)
    assert (out / MANIFEST).read_text() == "new" and list(out.parent.iterdir()) == [out]


def test_an_index_is_back_in_its_place_if_the_new_one_cannot_be_renamed(out):
    with pytest.raises(FileNotFoundError), work_folder(out) as work:
        shutil.rmtree(work)
    assert (out / MANIFEST).read_text() == "old" and list(out.parent.iterdir()) == [out]


def test_a_folder_that_was_made_during_the_build_and_is_no_index_is_not_replaced(tmp_path):
    with pytest.raises(UserError, match="is not an index"), work_folder(tmp_path / "i") as work:
        (work / MANIFEST).write_text("new")
        (tmp_path / "i").mkdir()
        (tmp_path / "i/notes").write_text("mine")
    assert (tmp_path / "i/notes").read_text() == "mine"


def test_an_index_whose_build_was_killed_between_the_renames_is_put_back_by_the_next_one(out):
    done = subprocess.run([sys.executable, "-c", KILLED, out], timeout=60)
    assert done.returncode == 9 and not out.exists()
    with pytest.raises(UserError, match=f"mv {out}.replaced {out}"):
        read_manifest(out)
    with pytest.raises(UserError, match="--overwrite"):
        check_target(out, overwrite=False)
    assert (out / MANIFEST).read_text() == "old"
    replace(out)
    assert (out / MANIFEST).read_text() == "new" and list(out.parent.iterdir()) == [out]


def test_an_index_that_another_build_replaces_now_is_not_touched(out):
    replaced = out.rename(out.with_name("i.replaced"))
    with exclusive_lock(replaced, "busy"), pytest.raises(UserError, match="another build"):
        check_target(out, overwrite=True)
    assert replaced.is_dir() and not out.exists()


def test_a_folder_that_is_no_index_is_not_put_back(tmp_path):
    (tmp_path / "i.replaced").mkdir()
    check_target(tmp_path / "i", overwrite=False)
    assert not (tmp_path / "i").exists()


def test_links_in_a_work_folder_and_to_an_index_are_removed_and_not_followed(out, tmp_path):
    (tmp_path / "i.building").mkdir()
    kept = out.rename(tmp_path / "disk")
    out.symlink_to(kept)
    (tmp_path / "i.building" / "link").symlink_to(kept)
    replace(out)
    assert (kept / MANIFEST).read_text() == "old" and not out.is_symlink()
    assert [path.name for path in out.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_is_never_copied_over_another_name_of_itself(tmp_path, link):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("text")
    link(source, target)
    with pytest.raises(FileExistsError):
        link_or_copy(source, target)
    assert source.read_text() == "text"


def test_a_link_to_nothing_is_refused_before_the_build(tmp_path):
    (tmp_path / "out").symlink_to("nothing")
    with pytest.raises(UserError, match="is a link to nothing. Remove it"):
        check_target(tmp_path / "out", overwrite=True)
