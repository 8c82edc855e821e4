"""Engines that play a policy's turns on an OpenAI-compatible endpoint, with conversations or with token
ids."""
