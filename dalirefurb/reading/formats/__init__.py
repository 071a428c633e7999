"""What the headers and the bodies of image files say."""
