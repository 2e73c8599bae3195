"""``mogface watch``: faces in live video, of many sources at once.

Data flows one way: a source is read in its own thread (``reader``), which leaves the frames that are asked for in a
slot (``slot``); whenever the server has room, a frame is taken out and sent (``follow``); results come back in each
source's order and are written (``outputs``), counted (``tally``) and shown (``table``).
"""
