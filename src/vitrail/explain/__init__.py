"""What happens inside a model: tensors in, numbers out. Drawing and serving them is done elsewhere."""

from vitrail.explain.trace import trace as trace
