"""Work over whole corpora around training: negatives, labels, queries, recipes.

Each writes files that training or a person reads.
"""
