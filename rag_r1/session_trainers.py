"""A module for veRL's VERL_USE_EXTERNAL_MODULES: named there, it makes the plugin load its trainers.

It is empty on purpose. veRL imports these modules before it loads plugins, at a moment when the plugin may be
half loaded itself (a process whose first import is a part of the plugin, such as vLLM's engine on a CPU), so
the trainers cannot be imported here. The plugin looks whether this module was imported (plugin/__init__.py).
"""
