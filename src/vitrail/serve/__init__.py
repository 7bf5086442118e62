"""A model over HTTP: pictures in, labels out, many clients at once, and nothing that a client does takes it down."""
