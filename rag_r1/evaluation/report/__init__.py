"""Makes reports of finished runs: tables, intervals, comparisons and plots."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.evaluation.report.report")
