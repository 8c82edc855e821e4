"""The HTTP layers below the routes: listener, middleware, origin checks, connection limits, load shedding."""
