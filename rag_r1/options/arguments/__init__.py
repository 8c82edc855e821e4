"""The parts of a command line that a class declares (rag_r1/options/command_line.py): its fields, its parser,
their values and errors."""
