"""The commands, `dualenc X`: a page each; the only room that knows gin."""
