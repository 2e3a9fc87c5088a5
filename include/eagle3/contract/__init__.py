"""What the control side and the GPU host agree on. Light (stdlib + pydantic): this package is copied to the host."""
