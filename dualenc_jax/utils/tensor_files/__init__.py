"""Formats of tensors on disk: safetensors, zarr and Orbax; their digests.

Tensors are read one at a time. The parameters of a model, by name and shape,
are the subject of `checkpoints`.
"""
