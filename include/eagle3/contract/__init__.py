"""What the control side and the GPU host agree on. Light (stdlib + pydantic): this package is copied to the host."""

import sys

if sys.version_info < (3, 11):  # said here, before a module fails on a name that this Python lacks
    raise ImportError(
        f"a step needs Python 3.11 or later, and this is {sys.version.split()[0]}: set host_python to a newer one"
    )
