"""Work around training, over whole corpora or on request.

Negatives, labels, queries and recipes are files that training or a person
reads; serving is models and indexes by HTTP.
"""
