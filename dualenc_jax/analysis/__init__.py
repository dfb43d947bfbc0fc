"""Looks at the embedding space of a model: numbers, figures, projector files.

`sample` draws queries and passages, `vectors` embeds them, `geometry`,
`separability` and `maps` are pure numbers, `numbers` puts them together, and
`figures` and `lengths` say what is drawn of them and how.
"""
