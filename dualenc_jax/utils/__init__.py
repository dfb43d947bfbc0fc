"""Errors, files, JSON, tables, figures, the machine: of use in any program.

Nothing here knows retrieval, models or data sets. `tensor_files` are formats of
tensors on disk.
"""
