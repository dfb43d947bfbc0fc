"""What a judged row says, for comparing with another reading of its file."""


def pairs(examples):
  return [
      (
          e['query'],
          e['passage'],
          e['query_id'],
          e['passage_id'],
          e['relevance'],
      )
      for e in examples
  ]
