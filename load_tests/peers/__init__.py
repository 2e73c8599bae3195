"""What others run: the same detectors as tutorials put them to work, to be measured beside this project.

``detector`` is the detector with nothing round it. ``torchserve_handler`` and ``triton_model`` serve it as it is;
they travel, with it, into an archive or a model repository, and import nothing of this project.
"""
