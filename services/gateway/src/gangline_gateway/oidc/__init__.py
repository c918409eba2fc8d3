"""Sign-in at an OpenID provider: the code flow for pages, the device flow for the command line."""
