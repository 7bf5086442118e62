"""Interactive Vision Transformer visualisation in the browser, for any model and any image."""
