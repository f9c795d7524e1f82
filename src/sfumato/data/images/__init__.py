"""Images: decoded, cropped, normalised, and shown in views, each by itself."""
