"""How the texts of a batch are put into rows."""
