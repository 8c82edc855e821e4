"""The HTTP service: routes, wire types, limits, reloads, error responses and logs."""
