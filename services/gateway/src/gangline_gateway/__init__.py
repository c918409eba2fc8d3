"""The gateway: the REST API, server-sent events and report pages."""
