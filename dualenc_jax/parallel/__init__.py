"""The mesh, rules over parameters, micro-batches."""
