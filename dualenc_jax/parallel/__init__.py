"""The mesh, rules over parameters, micro-batches; hosts that meet."""
