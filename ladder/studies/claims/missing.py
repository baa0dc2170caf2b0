"""Why something cannot be measured here, without what measuring imports: asv's processes ask for it, too."""


class Missing(Exception):
    """A contender that this machine or this checkout does not have; the message is its reason."""
