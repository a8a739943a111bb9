"""The critic of PPO: what it says of a batch, what advantages that gives, and the two forms it comes in."""
