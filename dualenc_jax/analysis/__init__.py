"""Looks at the embedding space of a model: numbers, figures, projector files.

`sample` draws queries and passages, `vectors` embeds them, `geometry`,
`separability`, `similarity` and `maps` are pure numbers, `numbers` puts them
together, and the `*_figures` say what is drawn of them and how.
"""
