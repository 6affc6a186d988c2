"""A Hugging Face Space with Gradio: search the images of a run by text, and its texts by image."""

from __future__ import annotations

import io
import os

import gradio as gr
from PIL import Image

import transhash

RESULTS = 12
engine = transhash.SearchEngine.open(os.environ.get("TRANSHASH_RUN", "run"))


def search_images(text: str) -> list[tuple[Image.Image, str]]:
    """Return thumbnails of the images that belong to a text, with their ids."""
    if not text.strip():
        raise gr.Error("The text is empty. Type what the images should show.")
    results = []
    for hit in engine.similar_to_text(text, RESULTS):
        thumbnail = engine.catalog.thumbnail(hit.item.number)
        if thumbnail is not None:
            results.append((Image.open(io.BytesIO(thumbnail)), hit.item.id))
    return results


def search_texts(image: Image.Image | None) -> list[list[str | int]]:
    """Return the texts that belong to an image, with the distances of their codes."""
    if image is None:
        raise gr.Error("There is no image. Choose one.")
    hits = engine.similar_to_image(image, RESULTS)
    return [[hit.item.text or hit.item.id, hit.distance] for hit in hits]


with gr.Blocks(title="transhash") as demo:
    gr.Markdown("# Search images by text and texts by image")
    with gr.Tab("Images"):
        text = gr.Textbox(label="Text", submit_btn=True)
        gallery = gr.Gallery(label="Images", columns=4)
        text.submit(search_images, text, gallery, api_name="search_images")
    with gr.Tab("Texts"):
        picture = gr.Image(label="Image", type="pil")
        table = gr.Dataframe(label="Texts", headers=["text", "distance"])
        picture.upload(search_texts, picture, table, api_name="search_texts")

if __name__ == "__main__":
    demo.launch()
