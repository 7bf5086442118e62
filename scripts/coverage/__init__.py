"""The parts of ``scripts.coverage_of_checkpoints``: models of timm and transformers, files of other projects, and the page."""
