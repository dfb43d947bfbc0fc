"""The commands, `dualenc X`: a page each, and the only room that knows gin."""
