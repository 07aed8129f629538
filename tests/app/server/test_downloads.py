from __future__ import annotations

import pytest

from app.server.downloads import attachment


@pytest.mark.parametrize(
    ("name", "disposition"),
    [
        ("adapter.gguf", 'attachment; filename="adapter.gguf"'),
        ("run 1-metrics.csv", 'attachment; filename="run 1-metrics.csv"'),
        (".bashrc", "attachment; filename=\"run-1\"; filename*=utf-8''.bashrc"),
        ('a"; x="b', "attachment; filename=\"run-1\"; filename*=utf-8''a%22%3B%20x%3D%22b"),
        ("a\r\nb: c", "attachment; filename=\"run-1\"; filename*=utf-8''a%0D%0Ab%3A%20c"),
        ("../../etc/ü", "attachment; filename=\"run-1\"; filename*=utf-8''.._.._etc_%C3%BC"),
        ("\udcff", "attachment; filename=\"run-1\"; filename*=utf-8''%3F"),
        ("", "attachment; filename=\"run-1\"; filename*=utf-8''"),
    ],
)
def test_a_name_stays_inside_its_header(name, disposition):
    headers = attachment(name, "run-1")
    assert headers["content-disposition"] == disposition
    assert headers["x-content-type-options"] == "nosniff"
