"""Our own losses and advantage estimators, in veRL's public registries.

Each module registers one when it is imported. The plugin imports them in every process, and a preset makes a
training use one (recipes/preset).
"""
