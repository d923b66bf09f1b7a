"""The serving side: open an index, compose prompts into plans, account for what happened."""
