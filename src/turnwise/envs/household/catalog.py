"""What a household is made of: receptacle and object types, what holds what, and which rooms have which.

Names, containment and affordances are facts of ALFWorld (arXiv:2010.03768) and its AI2-THOR scenes, written in its lower
case; the tables keep the subset of types that our rooms use. The counts of a room and the weights are our own choice.
"""

from __future__ import annotations

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

_TABLE = frozenset(
    "alarmclock apple basketball book bowl bread butterknife candle cd cellphone cloth creditcard cup dishsponge egg fork "
    "handtowel keychain knife laptop lettuce mug newspaper pan pen pencil peppershaker plate pot potato remotecontrol "
    "saltshaker soapbar soapbottle spatula spoon spraybottle statue tissuebox toiletpaper tomato vase watch".split()
)
_SEAT = frozenset(
    "basketball book cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol".split()
)
_STORE = frozenset(
    "alarmclock basketball book bowl candle cd cellphone cloth creditcard cup keychain laptop mug newspaper pen pencil "
    "plate remotecontrol spraybottle statue tissuebox toiletpaper vase watch".split()
)

CONTAINS: dict[str, frozenset[str]] = {
    "armchair": _SEAT,
    "bathtubbasin": frozenset("cloth dishsponge handtowel soapbar".split()),
    "bed": frozenset("basketball book cellphone laptop newspaper pillow".split()),
    "cabinet": frozenset(
        "book bowl candle cd cloth cup dishsponge handtowel mug newspaper pan peppershaker plate pot saltshaker soapbar "
        "soapbottle spraybottle tissuebox toiletpaper vase".split()
    ),
    "coffeemachine": frozenset({"mug"}),
    "coffeetable": _TABLE,
    "countertop": _TABLE,
    "desk": _STORE | {"soapbottle"},
    "diningtable": _TABLE,
    "drawer": frozenset(
        "book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife newspaper pen "
        "pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle tissuebox toiletpaper "
        "watch".split()
    ),
    "dresser": _STORE,
    "fridge": frozenset(
        "apple bowl bread cup egg lettuce mug pan plate pot potato tomato".split()
    ),
    "garbagecan": frozenset(
        "apple bread cd cloth dishsponge egg handtowel lettuce newspaper pen pencil potato soapbar soapbottle spraybottle "
        "tissuebox toiletpaper tomato".split()
    ),
    "microwave": frozenset("apple bowl bread cup egg mug plate potato tomato".split()),
    "ottoman": _SEAT,
    "safe": frozenset("cd cellphone creditcard keychain statue vase watch".split()),
    "shelf": _TABLE
    - frozenset(
        "apple basketball bread butterknife egg fork knife laptop lettuce pan potato spatula spoon tomato".split()
    ),
    "sidetable": _TABLE,
    "sinkbasin": frozenset(
        "apple bowl butterknife cloth cup dishsponge egg fork handtowel knife lettuce mug pan plate pot potato soapbar "
        "spatula spoon tomato".split()
    ),
    "sofa": _SEAT,
    "stoveburner": frozenset({"pan", "pot"}),
    "toilet": frozenset(
        "candle cloth dishsponge handtowel newspaper soapbar soapbottle spraybottle tissuebox toiletpaper".split()
    ),
    "toiletpaperhanger": frozenset({"toiletpaper"}),
}

CLEANABLE = frozenset(
    "apple bowl butterknife cloth cup dishsponge egg fork knife lettuce mug pan plate pot potato soapbar spatula spoon "
    "tomato".split()
)
HEATABLE = frozenset("apple bread cup egg mug plate potato tomato".split())
COOLABLE = frozenset(
    "apple bowl bread cup egg lettuce mug pan plate pot potato tomato".split()
)
SLICEABLE = frozenset("apple bread egg lettuce potato tomato".split())
KNIVES = frozenset({"butterknife", "knife"})
LAMPS = frozenset({"desklamp"})  # not pickupable
VESSELS = frozenset(
    "bowl cup mug pan plate pot".split()
)  # ALFWorld's receptacle objects

CLEANING, HEATING, COOLING = "sinkbasin", "microwave", "fridge"

LAMP_PLACES = frozenset({"desk", "dresser", "sidetable"})

WEIGHTS = {
    "bed": 2,
    "coffeetable": 3,
    "countertop": 4,
    "desk": 4,
    "diningtable": 4,
    "dresser": 2,
    "fridge": 2,
}
"""How likely a receptacle is to hold a thing it can hold, relative to the others (1): placement and search both read it."""

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
"""Room kind -> receptacle type -> least and most instances."""

OBJECTS: dict[str, tuple[str, ...]] = {
    "kitchen": tuple(
        "apple bowl bread butterknife cup dishsponge egg fork knife lettuce mug pan peppershaker plate pot potato "
        "saltshaker soapbottle spatula spoon tomato".split()
    ),
    "bedroom": tuple(
        "alarmclock basketball book cd cellphone cloth creditcard keychain laptop mug pen pencil pillow watch".split()
    ),
    "livingroom": tuple(
        "book candle cellphone creditcard keychain laptop newspaper pillow remotecontrol statue tissuebox vase watch".split()
    ),
    "bathroom": tuple(
        "candle cloth dishsponge handtowel soapbar soapbottle spraybottle tissuebox toiletpaper".split()
    ),
}
"""Room kind -> the types of things that lie about in it (lamps apart)."""
