"""What all pages share."""

import gc
import weakref

from batchjob_stats_server.pages.rendering.frame import make_environment, render_template

TEMPLATE = """{% macro twice(text) %}{{ text.lower() }}{{ text.lower() }}{% endmacro %}
{% block main %}{{ twice(what.text) }}{% endblock %}"""


class Shown:
    """Something that a page shows."""

    text = "<B>"


def test_what_a_page_shows_is_let_go_without_the_garbage_collector():
    template = make_environment(()).templates.from_string(TEMPLATE)
    shown = Shown()
    held = weakref.ref(shown)
    gc.disable()
    try:
        assert render_template(template, what=shown).strip() == "&lt;b&gt;&lt;b&gt;"
        del shown
        assert held() is None
    finally:
        gc.enable()
