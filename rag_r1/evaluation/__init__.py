"""Rollouts outside training: evaluation, traces and filters."""
