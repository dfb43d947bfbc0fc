"""Analysis of a model's embedding space: numbers and the papers' figures.

`sample` draws queries and passages, `vectors` embeds them, `separability`
classifies them, `embedding_space` puts the numbers together, and `figures`
draws. Quality by metrics is in `evaluation.results`.
"""
