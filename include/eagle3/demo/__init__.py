"""The demonstration: small real targets and prompts, so that the whole pipeline runs on a laptop CPU."""
