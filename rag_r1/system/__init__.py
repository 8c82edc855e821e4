"""Facts about this machine and this installation: extras, GPU driver, cores, child processes, other
trainings.
"""
