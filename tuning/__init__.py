"""Search over knobs: a seeded study that can be interrupted, continued, and spread over processes or machines."""
