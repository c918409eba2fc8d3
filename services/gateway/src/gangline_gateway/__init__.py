"""REST, server-sent events and pages."""
