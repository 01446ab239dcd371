"""`make hostile`: attacks a real server with a real model, and measures how they affect another user."""
