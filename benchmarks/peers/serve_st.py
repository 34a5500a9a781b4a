"""sentence-transformers behind plain FastAPI, as a tutorial writes it: python serve_st.py MODEL PORT THREADS."""

from __future__ import annotations

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
torch.set_num_threads(int(sys.argv[3]))
model = SentenceTransformer(sys.argv[1], device="cpu")
model.max_seq_length = 256


class Request(BaseModel):
    input: str | list[str]


@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict:
    """One thread of the pool per request."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    rows = [{"index": at, "embedding": vector.tolist()} for at, vector in enumerate(vectors)]
    return {"object": "list", "data": rows}


@app.get("/health")
def health() -> dict:
    return {}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
