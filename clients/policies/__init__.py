"""Whatever maps an observation or a prompt to what the agent does next."""
