"""Models and indexes by HTTP: a page, JSON, batches of what comes at once."""
