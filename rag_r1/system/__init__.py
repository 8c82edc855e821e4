"""This machine and this installation: extras, GPU driver, cores, child processes, other trainings, and
modules under their old names.
"""
