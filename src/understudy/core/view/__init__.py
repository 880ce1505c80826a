"""Which node sits in which seat: views, and the controller that decides them."""
