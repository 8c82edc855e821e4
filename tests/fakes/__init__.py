"""What stands in for a model, a server or a clock in more than one folder of tests.

The servers are real ones, on loopback and in a thread of the test; each is a context manager with a `url`:

- `scripted_vllm`, `reading_policy`: completions in vLLM's form; the second answers from what it read
- `scripted_teacher`: a chat API whose faults follow from a seed
- `judge_server`, `scripted_judge`: a judge that replies as it is told, or from what it knows
- `scored_world`: a reading policy and a judge over one world
- `corpus_retriever`, `misbehaving_server`: retrieval servers, of a few passages or as a test answers
- `json_server`: answers every request with the JSON that a test returns
- `small_mcp_server`: an MCP server over stdio, run as a program

Without HTTP: `scripted_engine`, engine and tools of an episode; `virtual_time`, a clock that does not wait.
"""
