"""What is done to a server in scenarios, by threads: hands.py does it, the other files are the kinds."""
