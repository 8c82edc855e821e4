"""Search in this process: the back ends, and an index folder as a source."""
