"""Looks at the embedding space of a model: numbers, figures, projector files.

`sample` draws queries and passages, `vectors` embeds them, `geometry` and
`separability` are pure numbers, `analyse` puts them together, `figures` draws.
"""
