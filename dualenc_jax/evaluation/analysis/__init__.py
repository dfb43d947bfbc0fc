"""Analysis of a model's embedding space: numbers and the papers' figures.

`sample` draws queries and passages, `vectors` embeds them, `geometry` and
`separability` are pure numbers, `analyse` puts them together, `figures` draws.
"""
