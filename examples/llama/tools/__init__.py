"""What examines a training step or a trained model."""
