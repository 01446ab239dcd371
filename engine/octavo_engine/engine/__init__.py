"""The engine loop, which plans and executes steps, its process, and the client that talks to it."""
