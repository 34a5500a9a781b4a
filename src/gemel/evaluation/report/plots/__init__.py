"""The pictures of a report: SVG inside the page, drawn 340 units wide so that letters stay readable on a phone."""
