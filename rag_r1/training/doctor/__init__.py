"""`rag-r1 doctor`: checks of the installation and of the machine."""
