"""The Vision Transformer in the browser: any model, any picture, numbers one can check."""
