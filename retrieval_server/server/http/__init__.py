"""HTTP below the routes: listener, middleware, origins, limits of connections and load."""
