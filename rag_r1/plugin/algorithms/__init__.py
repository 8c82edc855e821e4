"""Losses and advantage estimators of our own, in veRL's public registries.

Each module registers one when it is imported, which the plugin does in every process; a preset turns it on
(recipes/preset).
"""
