"""Language models outside training: clients of OpenAI-compatible servers, vLLM's server, checkpoints."""
