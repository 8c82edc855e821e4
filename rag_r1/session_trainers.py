"""A module for veRL's VERL_USE_EXTERNAL_MODULES, whose import makes the plugin load its session trainers.

It is empty on purpose. veRL imports the modules in this variable before it loads plugins, when the plugin may
be only partly imported (in a process whose first import is a part of the plugin, such as vLLM's engine on a
CPU). So the trainers cannot be imported here. Instead, the plugin checks later whether this module was
imported (plugin/__init__.py).
"""
