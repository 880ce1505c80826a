"""Who sits where: views, and the controller that decides them."""
