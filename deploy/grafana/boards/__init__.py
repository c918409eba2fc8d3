"""The dashboards, one module each, and the panels that they are made of."""
