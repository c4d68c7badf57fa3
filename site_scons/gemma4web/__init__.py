"""Builds, proves and runs Gemma 4 with multi-token prediction in the browser on WebGPU.

Nothing here imports SCons; the adapters in ``site_tools`` do. ``python -m gemma4web`` is the command line.
"""

__version__ = "0.1.0"
