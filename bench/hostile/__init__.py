"""`make hostile`: attacks on a real server with a real model, and what an honest user beside them notices."""
