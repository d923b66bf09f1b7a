"""What an evaluation compares: dense, sparse masks of any origin, and methods that reuse KV."""
