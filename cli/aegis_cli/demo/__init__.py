"""`aegis demo`: a real training, really killed, really recovered, in front of the reader's eyes."""
