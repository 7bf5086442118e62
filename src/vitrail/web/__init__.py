"""Server, sockets, requests and responses that ``serve`` and ``studio`` share."""
