"""The console: pages in the browser over the gateway's REST, with the user's own token."""
