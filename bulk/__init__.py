"""Faces of whole collections, on Ray Data: many images, one command, an output that is whole or goes on."""
