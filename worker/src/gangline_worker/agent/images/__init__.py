"""Container images on the node: fetched from registries, unpacked once, used by many gangs."""
