"""What any program needs: errors, files, JSON, tables, figures, the machine.

Nothing here knows retrieval, models or data sets. `tensor_files` are formats of
tensors on disk.
"""
