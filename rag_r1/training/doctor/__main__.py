"""Runs `rag-r1 doctor` as a module."""

import sys

from rag_r1.training.doctor.command import main

sys.exit(main())
