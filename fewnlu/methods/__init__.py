"""Methods: how a model learns from a train set. Each is a LightningModule in a file of its own."""
