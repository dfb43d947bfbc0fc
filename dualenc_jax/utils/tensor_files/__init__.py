"""Files of tensors, one tensor at a time."""
