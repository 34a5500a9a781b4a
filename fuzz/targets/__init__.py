"""The targets, by what they read. `fuzz.target.TARGET_FILES` names the modules."""
