"""PyTorch reference of the DeepSeek-V4.1 text architecture: oracle of the engine, model of the trainer."""
