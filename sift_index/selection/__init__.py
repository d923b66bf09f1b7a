"""Selection: from a model's attention on one document to the masks an index stores."""
