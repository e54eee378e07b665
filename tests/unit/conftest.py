"""What holds for every unit test."""

from hypothesis import settings

# How long an example takes says what else the machine does.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
