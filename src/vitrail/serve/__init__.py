"""Serve a model over HTTP: images in, labels out, with dynamic batching and limits that no client can exceed."""
