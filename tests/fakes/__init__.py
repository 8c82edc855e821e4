"""What stands in for a model, a server or a clock in more than one folder of tests.

The servers are real ones, on loopback and in a thread of the test; each is a context manager with a `url`:

- `openai_server`: chats and completions that a test replies to, with texts, failures or streams
- `judge_server`: the same for a judge, which may reply to the case in a request
- `scripted_vllm`, `reading_policy`: completions in vLLM's form; the second answers from what it read
- `scripted_teacher`: a chat API whose faults follow from a seed
- `scored_world`: a reading policy and a judge over one world
- `retriever`: searches in a few passages, or as a test answers; `results` is an answer on the wire
- `json_server`: answers every request with the JSON that a test returns
- `small_mcp_server`: an MCP server over stdio, run as a program

Without HTTP: `scripted_engine`, engine and tools of an episode; `virtual_time`, a clock that does not wait.
"""
