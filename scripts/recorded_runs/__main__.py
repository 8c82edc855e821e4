"""`python scripts/recorded_runs record OUT` and `python scripts/recorded_runs compare OLD NEW`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_runs.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
