"""Split strategies: each turns the labelled rows into K (train, dev) pairs."""
