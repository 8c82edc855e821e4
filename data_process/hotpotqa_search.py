"""HotpotQA for single-query search (RAG-R1-sq): one query per turn.

FlashRAG's HotpotQA from the Hub:
    python -m data_process.hotpotqa_search --out data/hotpotqa_search
or local files, RAG-R1's own selection for example:
    python -m data_process.hotpotqa_search --out data/hotpotqa_search \\
        --train train_data.json --validation test_data.json
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that the script also runs without installation

from data_process.command import main

if __name__ == "__main__":
    sys.exit(main(__doc__, "rag_r1_sq", "hotpotqa", ("RUC-NLPIR/FlashRAG_datasets", "hotpotqa")))
