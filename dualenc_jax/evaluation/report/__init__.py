"""The report on a trained model: what is read, and the page made of it.

`contents.read` gathers what MODEL_DIR holds, `page.render` writes it as one
HTML page that loads nothing. Needs neither JAX nor TensorFlow.
"""
