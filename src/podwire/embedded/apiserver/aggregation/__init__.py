"""Groups of the API that other servers serve: registration, availability, and the way of a request to them."""
