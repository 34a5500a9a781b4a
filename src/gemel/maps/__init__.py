"""Texts on a map: a place for each vector, and the map as a page and as a picture."""

from __future__ import annotations

from gemel.maps.content import Group as Group
from gemel.maps.content import MapContent as MapContent
from gemel.maps.image import map_png as map_png
from gemel.maps.page import map_page as map_page
from gemel.maps.places import LayoutName as LayoutName
from gemel.maps.places import layout as layout
