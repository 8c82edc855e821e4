"""Reports of finished runs: tables, intervals, comparisons, plots."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.evaluation.report.report")
