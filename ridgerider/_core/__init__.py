"""The core, in JAX: what is searched, its ridges, and the loop that follows one.

Pure functions and `eqx.Module` values that work under jit and vmap. Nothing here knows of trees,
files or processes.
"""
