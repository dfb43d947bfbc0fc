"""Programs on accelerators that are not there, by their compilers."""
