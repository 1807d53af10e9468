"""Constants of ``env=household``: types of receptacles and objects, their affordances, and the content of rooms.

A receptacle is a place that can hold objects, such as a drawer or a table. The names, the rules about which receptacle
holds which object, and the affordances (for example which objects can be heated) come from ALFWorld (arXiv:2010.03768)
and its AI2-THOR scenes. The counts per room and the weights were chosen for this environment.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

_TABLE = _set(
    "alarmclock apple basketball book bowl bread butterknife candle cd cellphone cloth creditcard cup "
    "dishsponge egg fork handtowel keychain knife laptop lettuce mug newspaper pan pen pencil peppershaker "
    "plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle statue tissuebox "
    "toiletpaper tomato vase watch"
)
_SEAT = _set("basketball book cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol")
_STORE = _set(
    "alarmclock basketball book bowl candle cd cellphone cloth creditcard cup keychain laptop mug newspaper "
    "pen pencil plate remotecontrol spraybottle statue tissuebox toiletpaper vase watch"
)

CONTAINS: dict[str, frozenset[str]] = {
    "armchair": _SEAT,
    "bathtubbasin": _set("cloth dishsponge handtowel soapbar"),
    "bed": _set("basketball book cellphone laptop newspaper pillow"),
    "cabinet": _set(
        "book bowl candle cd cloth cup dishsponge handtowel mug newspaper pan peppershaker plate pot "
        "saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper vase"
    ),
    "coffeemachine": frozenset({"mug"}),
    "coffeetable": _TABLE,
    "countertop": _TABLE,
    "desk": _STORE | {"soapbottle"},
    "diningtable": _TABLE,
    "drawer": _set(
        "book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife "
        "newspaper pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon "
        "spraybottle tissuebox toiletpaper watch"
    ),
    "dresser": _STORE,
    "fridge": _set("apple bowl bread cup egg lettuce mug pan plate pot potato tomato"),
    "garbagecan": _set(
        "apple bread cd cloth dishsponge egg handtowel lettuce newspaper pen pencil potato soapbar soapbottle "
        "spraybottle tissuebox toiletpaper tomato"
    ),
    "microwave": _set("apple bowl bread cup egg mug plate potato tomato"),
    "ottoman": _SEAT,
    "safe": _set("cd cellphone creditcard keychain statue vase watch"),
    "shelf": _TABLE
    - _set("apple basketball bread butterknife egg fork knife laptop lettuce pan potato spatula spoon tomato"),
    "sidetable": _TABLE,
    "sinkbasin": _set(
        "apple bowl butterknife cloth cup dishsponge egg fork handtowel knife lettuce mug pan plate pot "
        "potato soapbar spatula spoon tomato"
    ),
    "sofa": _SEAT,
    "stoveburner": frozenset({"pan", "pot"}),
    "toilet": _set("candle cloth dishsponge handtowel newspaper soapbar soapbottle spraybottle tissuebox toiletpaper"),
    "toiletpaperhanger": frozenset({"toiletpaper"}),
}

CLEANABLE = _set(
    "apple bowl butterknife cloth cup dishsponge egg fork knife lettuce mug pan plate pot potato soapbar "
    "spatula spoon tomato"
)
HEATABLE = _set("apple bread cup egg mug plate potato tomato")
COOLABLE = _set("apple bowl bread cup egg lettuce mug pan plate pot potato tomato")
SLICEABLE = _set("apple bread egg lettuce potato tomato")
KNIVES = frozenset({"butterknife", "knife"})
LAMPS = frozenset({"desklamp"})  # lamps cannot be picked up
VESSELS = _set("bowl cup mug pan plate pot")  # ALFWorld's receptacle objects, which can hold other objects

CLEANING, HEATING, COOLING = "sinkbasin", "microwave", "fridge"

LAMP_PLACES = frozenset({"desk", "dresser", "sidetable"})

WEIGHTS = {"bed": 2, "coffeetable": 3, "countertop": 4, "desk": 4, "diningtable": 4, "dresser": 2, "fridge": 2}
"""Type of receptacle -> weight. Types that are not listed have the weight 1.

With probabilities in proportion to these weights, the generator of tasks draws the receptacle of each object, and the
scripted expert draws the order of its search.
"""

ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "kitchen": {
        "cabinet": (2, 4),
        "coffeemachine": (0, 1),
        "countertop": (1, 2),
        "diningtable": (0, 1),
        "drawer": (1, 3),
        "fridge": (1, 1),
        "garbagecan": (0, 1),
        "microwave": (1, 1),
        "shelf": (0, 1),
        "sinkbasin": (1, 1),
        "stoveburner": (1, 2),
    },
    "bedroom": {
        "armchair": (0, 1),
        "bed": (1, 1),
        "desk": (1, 2),
        "drawer": (2, 4),
        "dresser": (0, 1),
        "garbagecan": (0, 1),
        "safe": (0, 1),
        "shelf": (1, 3),
        "sidetable": (1, 2),
    },
    "livingroom": {
        "armchair": (1, 2),
        "coffeetable": (1, 1),
        "diningtable": (0, 1),
        "drawer": (1, 3),
        "dresser": (0, 1),
        "garbagecan": (0, 1),
        "ottoman": (0, 1),
        "safe": (0, 1),
        "shelf": (0, 2),
        "sidetable": (1, 3),
        "sofa": (1, 1),
    },
    "bathroom": {
        "bathtubbasin": (0, 1),
        "cabinet": (2, 4),
        "countertop": (1, 1),
        "drawer": (0, 3),
        "garbagecan": (0, 1),
        "shelf": (0, 2),
        "sinkbasin": (1, 2),
        "toilet": (1, 1),
        "toiletpaperhanger": (1, 1),
    },
}
"""Kind of room -> type of receptacle -> minimum and maximum number of receptacles of this type in the room."""

OBJECTS: dict[str, tuple[str, ...]] = {
    "kitchen": _names(
        "apple bowl bread butterknife cup dishsponge egg fork knife lettuce mug pan peppershaker plate pot "
        "potato saltshaker soapbottle spatula spoon tomato"
    ),
    "bedroom": _names(
        "alarmclock basketball book cd cellphone cloth creditcard keychain laptop mug pen pencil pillow watch"
    ),
    "livingroom": _names(
        "book candle cellphone creditcard keychain laptop newspaper pillow remotecontrol statue tissuebox vase watch"
    ),
    "bathroom": _names("candle cloth dishsponge handtowel soapbar soapbottle spraybottle tissuebox toiletpaper"),
}
"""Kind of room -> types of the objects that can lie in the room, except lamps."""
