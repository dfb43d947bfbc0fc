"""The device mesh, placement by rules, micro-batches, and the hosts of a run.

The train step that uses them is in `training`, which exports `Partitioner`.
"""
