"""PyTorch modules of the testbed: targets, drafters and their training losses. Import these only where torch is."""
