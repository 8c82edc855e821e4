"""Your own questions: any file with questions and answers, any protocol.

    python -m data_process.qa_search --out data/mine --source-name mine --protocol rag_r1_mq \\
        --train mine_train.jsonl --validation mine_dev.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that the script also runs without installation

from data_process.command import main

if __name__ == "__main__":
    sys.exit(main(__doc__, "rag_r1_sq"))
