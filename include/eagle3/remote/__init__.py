"""Runs on the GPU host, in the host's own environment. Nothing on the control side imports it."""
