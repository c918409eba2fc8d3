"""Every answer of the REST API, typed once: the gateway builds it, CLI and SDK read it."""
