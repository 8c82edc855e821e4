"""`rag-r1 eval --card`: all probes of a policy, their figures and the verdict."""
