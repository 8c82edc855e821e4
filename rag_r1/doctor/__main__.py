"""`python -m rag_r1.doctor`: as `rag-r1 doctor`."""

import sys

from rag_r1.doctor import main

sys.exit(main())
