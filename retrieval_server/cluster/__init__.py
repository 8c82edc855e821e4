"""Indexes on several machines: encoders and shards as Ray Serve deployments."""
