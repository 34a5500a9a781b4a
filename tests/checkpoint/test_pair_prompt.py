"""Chat templates of rerankers: read as text with gaps, exactly as Jinja fills them."""

import pytest

from gemel.checkpoint.pair_prompt import FORMATS, format_of, parse_chat_template, read_chat_template
from gemel.errors import ModelError

QUERY = 'messages | selectattr("role", "eq", "query") | map(attribute="content") | first'
DOCUMENT = "(messages | selectattr('role', 'equalto', 'document') | first).content"
SYSTEM = 'messages | selectattr("role", "eq", "system") | map(attribute="content") | first'

TEMPLATES = [
    f"{{{{ {QUERY} }}}}|{{{{ {DOCUMENT} }}}}",
    f"  a \n  {{%- set q = {QUERY} -%}}  \n b {{{{ q }}}}\n\nd: {{{{ {DOCUMENT} }}}} end\n\n\n",
    f"x\n  {{% set q = {QUERY} %}}\n  y {{{{- q -}}}} z {{# a note #}}\n{{{{ {DOCUMENT} }}}}",
    f'{{{{ {SYSTEM} | default("a \\"fine\\"\\nday") }}}}{{{{ {QUERY} }}}}{{{{ {DOCUMENT} }}}}',
    f"{{{{ {SYSTEM} }}}}-{{{{\n    {DOCUMENT}\n}}}}\n{{{{ {QUERY} }}}}",
    f"{{%+ set q = {QUERY} +%}}\n[{{{{ q }}}}] {{{{ {DOCUMENT} }}}}",
]


def jinja(template, query, document, instruction):
    """As transformers sets Jinja up."""
    package = pytest.importorskip("jinja2")
    environment = package.Environment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    system = [] if instruction is None else [{"role": "system", "content": instruction}]
    return environment.from_string(template).render(messages=system + messages)


@pytest.mark.parametrize("instruction", [None, "find it"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_filled_as_jinja_fills_it(template, instruction):
    prompt = parse_chat_template(template, where="tiny", instruction=instruction)
    for query, document in (("a man", "a woman"), ("", " x\n"), ("{{ q }}", "{% raw %}")):
        assert prompt.filled(query, document) == jinja(template, query, document, instruction)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "'for m in messages'"),
        (f"{{{{ {QUERY} | upper }}}}{{{{ {DOCUMENT} }}}}", "upper"),
        (f"{{{{ {QUERY} }}}}{{{{ ''.__class__ }}}}", "__class__"),
        (f"{{{{ {QUERY} }}}}{{{{ unknown }}}}", "'unknown'"),
        (f"{{{{ {QUERY} }}}}", "must insert one query and one document, but inserts query"),
        (f"{{{{ {QUERY} }}}}{{{{ {QUERY} }}}}{{{{ {DOCUMENT} }}}}", "inserts query, query, document"),
        ("hello", "inserts neither"),
    ],
)
def test_a_template_that_does_more_or_less_is_refused(template, message):
    with pytest.raises(ModelError) as error:
        parse_chat_template(template, where="tiny")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("Qwen/Qwen3-Reranker-0.6B", "qwen3", "qwen3-reranker"),
        ("tomaarsen/Qwen3-Reranker-4B-seq-cls", "qwen3", "qwen3-reranker"),
        ("mixedbread-ai/mxbai-rerank-large-v2", "qwen2", "mxbai-rerank-v2"),
        ("mixedbread-ai/mxbai-rerank-large-v1", "deberta-v2", None),
        ("me/Qwen3-Reranker-distilled", "xlm-roberta", None),
        ("Qwen/Qwen3-0.6B", "qwen3", None),
    ],
)
def test_known_formats_are_found_by_name_and_architecture(name, kind, expected):
    assert format_of(name, kind, "auto") is (FORMATS[expected] if expected else None)
    assert format_of(name, kind, "none") is None


def test_a_template_of_open_tags_is_refused():
    with pytest.raises(ModelError, match="inserts neither"):
        parse_chat_template("{% {{ {# " * 500, where="tiny")
    with pytest.raises(ModelError, match="at most 65,536"):
        parse_chat_template("{% " * 100_000, where="tiny")


def test_a_template_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"cannot read .*chat_template\.jinja"):
        read_chat_template(tmp_path, {}, None)
