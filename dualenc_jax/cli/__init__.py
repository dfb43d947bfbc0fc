"""The commands, `dualenc X`: a module each, and all that knows gin.

The work of a command lies below, and knows no flags.
"""
