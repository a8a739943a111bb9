"""The conformance suite: what every environment promises, checked against a real server on loopback."""
