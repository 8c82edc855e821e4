"""The HTTP service: routes, wire types, limits, reload, metrics and logs."""
