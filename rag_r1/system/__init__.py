"""This machine and this installation: extras, GPU driver, child processes, other trainings."""
