"""Results of evaluations: read, set out as the papers' tables, compared."""
