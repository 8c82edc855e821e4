"""The HTTP layers below the routes: listener, middleware, checks of origins, limits, load shedding."""
