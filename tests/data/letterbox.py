"""Letterboxing by Pillow alone, which the preprocessing is compared with."""

from PIL import Image, ImageOps

from vitrail.data.preprocess import Preprocess


def letterbox_by_pillow(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    """Resize an image to fit into the input, and paste it in the middle of a canvas of the mean colour."""
    height, width = preprocess.image_size
    fitted = ImageOps.contain(image, (width, height), Image.Resampling[preprocess.interpolation.upper()])
    grey = [round(255 * mean) for mean in preprocess.mean]
    canvas = Image.new(image.mode, (width, height), grey[0] if image.mode == "L" else tuple(grey))
    canvas.paste(fitted, ((width - fitted.width) // 2, (height - fitted.height) // 2))
    return canvas
