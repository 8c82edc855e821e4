"""Exports trajectories as a static page: selects them, and collects the data that the page contains."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rag_r1.explorer.filters import FilterError, Selection
from rag_r1.explorer.page import static_page
from rag_r1.explorer.queries import Connection, fetch
from rag_r1.explorer.trajectory import trajectory

#: Maximum number of trajectories in a page.
MAX_TRAJECTORIES = 500


def export_page(connection: Connection, title: str, tids: Sequence[int]) -> str:
    """Return a page with these trajectories, as HTML.

    Raises FilterError if there are none or too many, and DataError if a trajectory does not exist, or its
    record has changed since it was read.
    """
    if not 1 <= len(tids) <= MAX_TRAJECTORIES:
        raise FilterError(f"select 1 to {MAX_TRAJECTORIES} trajectories, not {len(tids)}")
    date = datetime.now().astimezone().isoformat(" ", "minutes")
    details = [trajectory(connection, tid) for tid in tids]
    return static_page({"title": title, "made": date, "trajectories": details})


def select_trajectories(connection: Connection, selection: Selection) -> tuple[list[int], int]:
    """Return the numbers of the first MAX_TRAJECTORIES trajectories of a selection, and how many it has."""
    sql = f"""SELECT tid, count(*) OVER () FROM trajectories WHERE {selection.where}
            ORDER BY tid LIMIT {MAX_TRAJECTORIES}"""
    rows = fetch(connection, sql, selection.values)
    return [tid for tid, _ in rows], rows[0][1] if rows else 0
