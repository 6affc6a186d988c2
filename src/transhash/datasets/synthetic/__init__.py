"""The embedded default data set, drawn and written by code: synthetic, no download.

Twelve everyday things in two styles. Auxiliary: poster scenes with captions. Target: crayon
drawings, and riddles and notes, unpaired. See README.md in a drawn folder.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from PIL import Image

from transhash.datasets.synthetic import objects
from transhash.datasets.synthetic.shapes import Drawing
from transhash.datasets.synthetic.styles import draw_crayon, draw_poster
from transhash.errors import DataError
from transhash.storage import atomic_folder, read_json, write_json

# The texts: plain captions for the posters; riddles, questions and notes for the target.
#
# The two kinds are put together from different phrases and share single words only: mostly the
# name of the thing, else the words for its parts (roof, sails, petals), which captions use too.


class Lexicon(NamedTuple):
    """What can be said of one thing."""

    names: tuple[str, ...]  # in captions; the first is the usual one
    plural: str
    features: tuple[str, ...]  # captions: "with ..."
    actions: tuple[str, ...]  # captions
    clues: tuple[str, ...]  # target texts: "it ..."


LEXICONS = {
    "house": Lexicon(
        ("house", "cottage"),
        "houses",
        ("a pointed roof", "a small door", "a tall chimney", "shining windows", "thick walls",
         "a wooden door and a roof"),
        ("standing", "keeping its windows lit", "keeping its door shut", "keeping a family warm"),
        ("keeps the rain out with its roof", "has a door but never walks through it",
         "breathes smoke by the chimney", "watches us with all its windows",
         "needs a key after dark", "has walls but no ears, they say",
         "smells of soup when the family is home", "creaks on the stairs",
         "wants new tiles and some paint", "sleeps when the windows go dark"),
    ),
    "tree": Lexicon(
        ("tree", "oak", "fir"),
        "trees",
        ("a thick trunk", "rustling leaves", "wide branches", "deep roots",
         "leaves on every branch"),
        ("growing", "spreading its branches", "casting shade", "shedding leaves"),
        ("drops its leaves when the days get short", "has bark but never bites",
         "holds up a swing on one of its branches", "gives shade in July",
         "counts its years in rings", "drinks through the roots",
         "gets taller each spring", "has a trunk and no suitcase",
         "lends a branch to the nest", "smells of wood after the storm"),
    ),
    "fish": Lexicon(
        ("fish", "goldfish"),
        "fish",
        ("shiny scales", "a striped body and fins", "little fins", "a forked tail",
         "bubbles around it", "round eyes and gills"),
        ("swimming", "blowing bubbles", "gliding", "moving its fins"),
        ("breathes where we would drown", "wears scales but weighs nothing",
         "steers with its fins", "makes bubbles and no sound",
         "never shuts its eyes", "is afraid of the hook",
         "swims in circles all day long", "lives in a bowl by the radio",
         "has gills instead of a nose", "slips out of wet hands"),
    ),
    "boat": Lexicon(
        ("boat", "ship"),
        "boats",
        ("a wooden hull", "a mast", "its sails up", "a flag on the mast", "a painted deck",
         "an anchor and sails"),
        ("sailing", "floating", "crossing the waves", "leaving the harbour"),
        ("floats although it is heavy", "waits in the harbour for wind",
         "folds its sails when it comes home", "carries a captain and no wheels",
         "is afraid of rocks", "throws an anchor before it rests",
         "goes up and down with the waves", "has a deck but no cards",
         "leaks a little under the hull", "points its mast at the clouds"),
    ),
    "sun": Lexicon(
        ("sun", "sunshine"),
        "suns",
        ("long rays", "warm rays", "a golden glow", "a round warm face", "bright morning light"),
        ("rising", "shining", "glowing", "warming the day"),
        ("wakes the rooster every morning", "melts my ice cream",
         "is too bright to look at", "sends its rays through the curtains",
         "goes down in the west", "gives light and asks for nothing",
         "burns the nose in August", "is shining on the bench at noon",
         "hides when the day is grey", "has rays but no hands"),
    ),
    "flower": Lexicon(
        ("flower", "blossom", "tulip"),
        "flowers",
        ("soft petals", "a thin stem", "two leaves on its stem", "open petals",
         "a sweet scent", "petals around the middle"),
        ("blooming", "blossoming", "opening its petals", "nodding on its stem"),
        ("opens its petals for the bee", "stands on one green stem",
         "smells sweet in a vase", "likes to be watered",
         "closes when evening comes", "grows from a seed no bigger than a crumb",
         "blooms in May and is gone", "was picked for a birthday",
         "loses its petals one by one", "brings a scent into the room"),
    ),
    "car": Lexicon(
        ("car", "motorcar"),
        "cars",
        ("four wheels", "black tyres", "round headlights", "a shiny engine", "a small trunk",
         "wheels and headlights"),
        ("parked", "driving", "waiting at the kerb", "rolling along the road"),
        ("has four wheels and drinks petrol", "honks in the traffic",
         "stops when the light says so", "needs its tyres pumped",
         "goes nowhere without an engine", "blinks before it turns",
         "sleeps in the garage", "takes us along the road to my aunt",
         "will not start without its key", "shines with two headlights in the fog"),
    ),
    "bird": Lexicon(
        ("bird", "sparrow"),
        "birds",
        ("folded wings", "soft feathers", "a sharp beak", "spread wings", "a feathered tail",
         "a small beak and wings"),
        ("singing", "flying", "perching", "flapping its wings"),
        ("has feathers and a song", "lays eggs in a nest",
         "flies south before the frost", "picks crumbs with its beak",
         "is singing before anyone is up", "spreads its wings and is gone",
         "builds a nest out of twigs", "hops along the fence",
         "knows the way without a map", "leaves feathers on the lawn"),
    ),
    "cup": Lexicon(
        ("cup", "mug"),
        "cups",
        ("hot tea", "a curved handle", "steaming coffee", "a saucer", "steam rising from it",
         "a handle and a saucer"),
        ("steaming", "filled with tea", "full of coffee", "set on its saucer"),
        ("has a handle and holds tea", "burns the tongue if you hurry",
         "goes round and round in the sink", "is never alone without its saucer",
         "chips when it is dropped", "smells of coffee at breakfast",
         "sends up steam like a small engine", "is full and then it is empty",
         "wants two lumps of sugar", "warms both hands in the morning"),
    ),
    "cat": Lexicon(
        ("cat", "kitten"),
        "cats",
        ("long whiskers", "soft fur", "pointed ears", "green eyes and whiskers", "a curled tail",
         "quiet paws"),
        ("sitting", "purring", "watching", "licking its paws"),
        ("starts purring when it is scratched", "lands on its paws",
         "chases the mouse", "drinks milk and leaves no thanks",
         "has green eyes that work in the dark", "sleeps on the warm newspaper",
         "has whiskers but never shaves", "sharpens its claws on the sofa",
         "hates a bath", "walks on soft paws along the wall"),
    ),
    "star": Lexicon(
        ("star", "stars"),
        "stars",
        ("five points", "sharp points", "a silver twinkle", "twinkling light", "a bright sparkle",
         "sparkling points"),
        ("twinkling", "sparkling", "glittering", "shining at midnight"),
        ("is twinkling when I should be asleep", "can be seen only in the dark",
         "has five points and no edge", "grants a wish when it falls",
         "is farther away than the moon", "sparkles at midnight",
         "shows the north with a silver twinkle", "is cut from gold paper for Christmas",
         "goes on sparkling and makes no heat", "vanishes at dawn"),
    ),
    "umbrella": Lexicon(
        ("umbrella", "parasol"),
        "umbrellas",
        ("a hooked handle", "striped panels", "a wooden handle", "a wide canopy",
         "rain running off it", "a canopy against the rain"),
        ("open", "held up against the rain", "dripping", "opened wide"),
        ("opens when the rain begins", "keeps my hair dry",
         "is forgotten on every bus", "turns its canopy inside out in a gust",
         "hangs by its hooked handle", "stands dripping in the hall",
         "is bad luck indoors", "folds up when the drops stop",
         "goes up when the rain comes down", "has a canopy and one thin leg"),
    ),
}  # fmt: skip
CLASSES = tuple(LEXICONS)

PLACES = {
    "meadow": ("in a meadow", "on the green grass", "among the hills", "in the countryside"),
    "street": ("in the street", "in town", "on a city street", "by the roadside"),
    "snow": ("in the snow", "on a winter day", "in a snowy field"),
    "night": ("at night", "under a dark sky", "by moonlight", "late at night"),
    "sea": ("at sea", "above the blue water", "on the sea", "near the coast"),
    "deep": ("under water", "deep in the sea", "among the weeds", "in clear water"),
    "sky": ("in the sky", "between the clouds", "high in the air"),
    "table": ("on a table", "in the kitchen", "indoors", "beside a window"),
    "plain": ("on a poster", "on a plain background", "on a bright background", "in a picture"),
}
NUMBERS = {2: "Two", 3: "Three"}
BESIDE = ("beside", "next to", "near", "together with", "and")
_SIZES = ("big", "little", "tall", "pretty", "bright", "neat")


def caption(
    rng: Random, setting: str, first: tuple[str, str], count: int, second: tuple[str, str] | None
) -> str:
    """A sentence that names what a poster shows; things come as (thing, colour)."""
    lexicon = LEXICONS[first[0]]
    place = rng.choice(PLACES[setting])
    size = rng.choice(_SIZES) + " " if rng.random() < 0.3 else ""
    if count > 1:
        return f"{NUMBERS[count]} {size}{first[1]} {lexicon.plural} {place}."
    subject = f"{size}{first[1]} {_name(rng, first[0])}"
    if second:
        detail = f" with {rng.choice(lexicon.features)}" if rng.random() < 0.5 else ""
        companion = _with_article(f"{second[1]} {_name(rng, second[0])}")
        pair = f"{_with_article(subject)}{detail} {rng.choice(BESIDE)} {companion}"
        return _sentence(f"{pair} {place}")
    feature, doing = rng.choice(lexicon.features), rng.choice(lexicon.actions)
    form = rng.randrange(4)
    if form == 0:
        return _sentence(f"{_with_article(subject)} with {feature}, {doing} {place}")
    if form == 1:
        return _sentence(f"{_with_article(subject)} {doing} {place}")
    if form == 2:
        return _sentence(f"{_with_article(subject)} with {feature} {place}")
    return _sentence(f"a picture of {_with_article(subject)} with {feature}")


NAMED = (  # {name} the thing, {clue} and {more} two of its clues
    "Why does everyone say the {name} {clue}?",
    "Dear diary, {time} I dreamt about a {name} that {clue}.",
    "Note to self: the {name} {clue}. Ask {person} about it.",
    "{person} asked me what {clue}. I said {name} and got a sweet.",
    "Is it true that a {name} {clue}? {person} laughed at me.",
    "What {clue} and {more}? The answer is {name}, of course.",
    "If it {clue}, it must be a {name}.",
    "{person} drew a {name} for me {time} because it {clue}.",
    "Who would believe in a {name} that {clue}?",
    "I will write a poem about the {name}; it {clue} and {more}.",
    "Teacher told us {time} how a {name} {clue}.",
    "Does your {name} do this too: it {clue}?",
)
UNNAMED = (
    "Riddle: it {clue} and it {more}. What is it?",
    "Guess what I mean: it {clue}.",
    "{person} says it {clue}, but I think it {more}.",
    "What could it be that {clue} and {more}?",
    "I told {person} {time}: whatever {clue} is worth a drawing.",
    "Dear diary, {time} I learned that it {clue}.",
    "Nobody guessed my riddle. It {clue}, it {more}, and that is all I will say.",
)
ASIDES = (
    "{person} guessed {wrong}, but no.",
    "It is not the {wrong}.",
    "The {wrong} can wait.",
    "Yesterday we did the {wrong}.",
    "Next page: {wrong}.",
    "I could not draw the {wrong} half as well.",
    "Like the other one, it {stray}.",
)
PEOPLE = ("Grandmother", "My brother", "Anna", "Uncle Joe", "Mother", "Tom", "The neighbour")
TIMES = ("last week", "on Monday", "this morning", "after school", "before supper", "in class")
NAMED_SHARE = 0.66  # of the target texts call their thing by its name
ASIDE_SHARE = 0.25  # of them also mention another thing


def make_riddle(rng: Random, thing: str) -> str:
    """A riddle, question, note or diary line about a thing."""
    lexicon = LEXICONS[thing]
    named = rng.random() < NAMED_SHARE
    # Without the name, some word must still lead back to the captions, or none could solve it.
    clue = rng.choice(lexicon.clues if named else _caption_clues(lexicon))
    more = rng.choice(
        [different_color for different_color in lexicon.clues if different_color != clue]
    )
    wrong = rng.choice([name for name in CLASSES if name != thing])
    form = rng.choice(NAMED if named else UNNAMED)
    if rng.random() < ASIDE_SHARE:
        form += " " + rng.choice(ASIDES)
    text = form.format(
        name=thing, clue=clue, more=more, wrong=wrong, stray=rng.choice(LEXICONS[wrong].clues),
        person=rng.choice(PEOPLE), time=rng.choice(TIMES),
    )  # fmt: skip
    return text.replace(" a umbrella", " an umbrella")


@cache
def _caption_clues(lexicon: Lexicon) -> tuple[str, ...]:
    """The clues that share a word of some length with the captions."""
    known = {word for phrase in (*lexicon.features, *lexicon.actions) for word in phrase.split()}
    return tuple(
        clue for clue in lexicon.clues if any(len(w) > 3 and w in known for w in clue.split())
    )


def _name(rng: Random, thing: str) -> str:
    names = LEXICONS[thing].names
    return names[0] if rng.random() < 0.85 else rng.choice(names)


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


__all__ = ["CLASSES", "SYNTHETIC_VERSION", "make_synthetic"]

SYNTHETIC_VERSION = 1  # raise it whenever the same seed would give other files

DRAW: dict[str, Callable[[Random], Drawing]] = {thing: getattr(objects, thing) for thing in CLASSES}
# Where a thing may be met. Plain posters come first and often: all things meet there.
HOMES = {
    "house": ("meadow", "street", "snow", "night"),
    "tree": ("meadow", "street", "snow", "night"),
    "fish": ("deep", "sea"),
    "boat": ("sea",),
    "sun": ("sky", "meadow", "sea", "street"),
    "flower": ("meadow", "table"),
    "car": ("street", "meadow", "snow", "night"),
    "bird": ("sky", "meadow", "snow", "sea"),
    "cup": ("table",),
    "cat": ("table", "meadow", "street", "snow", "night"),
    "star": ("night", "sky"),
    "umbrella": ("street", "meadow", "snow"),
}
PLAIN_SHARE = 0.5
PAIR_SHARE = 0.3  # of the scenes show a second thing

README = """# Drawn things

Synthetic: every picture was drawn and every text written by code (`transhash.datasets.synthetic`,
version {version}, seed {seed}, {per_class} items a class in each part). No photo, no download.

Classes: {things}.

- `auxiliary.tsv` (image, text, labels), {n} items, paired and labelled: bright posters with
  captions; one or two labels, joined by `|`
- `images.tsv` (image, labels), {n} items, unpaired: wax crayon on rough paper, one thing each
- `texts.tsv` (id, text, labels), {n} items, unpaired: riddles, questions and notes; about two in
  three name their thing, some name another one too

Both hands draw the same shapes; palette, paper, line, framing and wording differ.
"""


def make_synthetic(
    folder: Path,
    seed: int = 0,
    per_class: int = 100,
    track: Callable[..., Iterable[tuple[str, int]]] | None = None,
) -> Path:
    """The folder, holding the whole data set; drawn first unless it is there already.

    track(iterable, description, total) wraps the loops, for a progress bar.
    """
    folder = Path(folder)
    made_of = {"version": SYNTHETIC_VERSION, "seed": seed, "per_class": per_class}
    record = folder / "dataset.json"
    if record.is_file() and read_json(record) == made_of:
        return folder
    if folder.exists() and not record.is_file() and any(folder.iterdir()):
        raise DataError(f"{folder} holds files that are not a drawn data set; name another folder")
    with atomic_folder(folder) as draft:
        _draw(draft, seed, per_class, track or (lambda items, *_: items))
        write_json(draft / "dataset.json", made_of)
    return folder


def _draw(
    draft: Path, seed: int, per_class: int, track: Callable[..., Iterable[tuple[str, int]]]
) -> None:
    jobs = [(thing, i) for i in range(per_class) for thing in CLASSES]
    (draft / "auxiliary").mkdir()
    (draft / "images").mkdir()
    rows: list[tuple[str, ...]] = []
    for thing, i in track(jobs, "posters", len(jobs)):
        image, text, labels = _scene(Random(f"{seed}/poster/{thing}/{i}"), thing)
        rows.append((_save(image, draft, f"auxiliary/{thing}-{i:03d}.jpg"), text, "|".join(labels)))
    _write(draft / "auxiliary.tsv", ("image", "text", "labels"), rows)
    rows = []
    for thing, i in track(jobs, "crayon drawings", len(jobs)):
        rng = Random(f"{seed}/crayon/{thing}/{i}")
        image = draw_crayon(rng, DRAW[thing](rng))
        rows.append((_save(image, draft, f"images/{thing}-{i:03d}.jpg"), thing))
    _write(draft / "images.tsv", ("image", "labels"), rows)
    rows = [
        (f"{thing}-{i:03d}", make_riddle(Random(f"{seed}/text/{thing}/{i}"), thing), thing)
        for thing, i in jobs
    ]
    _write(draft / "texts.tsv", ("id", "text", "labels"), rows)
    readme = README.format(
        version=SYNTHETIC_VERSION,
        seed=seed,
        per_class=per_class,
        things=", ".join(CLASSES),
        n=len(jobs),
    )
    (draft / "README.md").write_text(readme, "utf-8")


def _scene(rng: Random, thing: str) -> tuple[Image.Image, str, list[str]]:
    """One poster, its caption and labels: a thing alone, several of it, or with another thing."""
    setting = "plain" if rng.random() < PLAIN_SHARE else rng.choice(HOMES[thing])
    first = DRAW[thing](rng)
    chance = rng.random()
    fits = [t for t in CLASSES if t != thing and (setting == "plain" or setting in HOMES[t])]
    if fits and chance < PAIR_SHARE:
        different_color = rng.choice(fits)
        second = DRAW[different_color](rng)
        image = draw_poster(rng, setting, [(thing, first), (different_color, second)])
        text = caption(rng, setting, (thing, first.colour), 1, (different_color, second.colour))
        return image, text, [thing, different_color]
    count = 1 if chance < 0.8 or thing == "sun" else rng.choice((2, 3))
    image = draw_poster(rng, setting, [(thing, first)] * count)
    return image, caption(rng, setting, (thing, first.colour), count, None), [thing]


def _save(image: Image.Image, draft: Path, name: str) -> str:
    image.save(draft / name, quality=88)
    return name


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
