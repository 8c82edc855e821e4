"""The ways to search an index in this process (back ends), and the source that an index folder becomes."""
