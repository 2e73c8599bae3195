"""The web page over a running server: photographs in, faces drawn in, for whoever has a browser."""
