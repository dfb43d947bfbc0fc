"""The commands, `dualenc X`: a module each, and all that knows gin.

What a command computes lies below, and knows no flags.
"""
