"""Engines that generate a policy's turns with an OpenAI-compatible endpoint, from messages or token ids."""
