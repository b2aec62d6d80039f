"""Word lists that the generators draw from, and made-up words."""
from __future__ import annotations

import random


def _w(text: str) -> list[str]:
    return text.split()


# Small pool of the first curriculum stage: with about ninety words the copying circuit forms
# within a few hundred steps, on an open vocabulary it stays on a plateau.
POOL = _w("""red blue green black white box key lamp door cup map ring coin book ship tree stone rope
bell clock cat dog fox bird fish horse wolf bear mouse snake tea milk bread apple lemon salt rice soup
sun moon star rain snow wind fire sand hill lake river forest road house tower bridge garden north south
east west left right one two three four five six seven eight nine ten big small old new hot cold fast
slow anna tom lisa max""")

COLORS = _w("""red blue green black white yellow orange purple brown pink gray silver golden violet
crimson turquoise beige amber""")
OBJECTS = _w("""box key lamp door cup map ring coin book ship stone rope bell clock bag bottle chair table
drawer safe locker card ticket letter parcel basket candle hammer mirror pencil pillow plate radio
saddle shelf spoon suitcase umbrella wallet wheel window engine camera piano guitar ladder blanket bucket
needle helmet carpet kettle barrel crate jar cabinet folder""")
ANIMALS = _w("""cat dog fox bird fish horse wolf bear mouse snake cow sheep goat duck goose hen pig rabbit
owl eagle crow swan frog turtle whale dolphin shark tiger lion zebra camel donkey monkey otter beaver
badger hedgehog squirrel deer moose falcon parrot penguin spider bee ant""")
FOODS = _w("""bread cheese apple lemon rice soup honey butter carrot potato tomato onion garlic pepper
banana cherry grape melon peach pear plum mango walnut almond pasta pizza salad cake cookie chocolate
coffee tea milk juice yogurt mushroom spinach pumpkin cabbage""")
PLACES = _w("""garden kitchen cellar attic barn bridge castle forest harbor market museum park school
station tower valley village library office church garage hall lake river island meadow mountain beach
cave field mill theater hospital bakery workshop airport""")
CITIES = _w("""Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki
Copenhagen Warsaw Budapest Athens Brussels Amsterdam Zurich Geneva Munich Hamburg Milan Naples Turin
Lyon Porto Seville Krakow Riga Tallinn Vilnius Cairo Tokyo Kyoto Osaka Seoul Delhi Mumbai Sydney Toronto
Boston Chicago Denver Seattle Austin Lima Quito Bogota Santiago Nairobi Lagos Beijing Shanghai""")
NAMES = _w("""Anna Tom Lisa Max Maria Peter Paul Eva Nina Oscar Hugo Clara Emma Noah Liam Mia Lena Felix
Jonas Sofia Laura David Simon Martin Alice Robert Helen George Irene Victor Rosa Samuel Julia Daniel
Nora Leon Ida Karl Greta Frank Grace Henry Ruth Walter Olga Ivan Yuki Kenji Priya Arjun Fatima Omar
Zoe Luca Carmen Diego Ines Bruno Vera Theo""")
JOBS = _w("""teacher doctor baker farmer pilot nurse painter singer writer lawyer sailor tailor gardener
engineer carpenter plumber driver judge chef dentist miner potter tutor clerk hunter""")
ADJECTIVES = _w("""old new big small quiet loud bright dark warm cold soft hard heavy light clean dusty
narrow wide round flat wooden broken empty full strange pretty busy calm clever brave gentle tired happy
lazy hungry young proud shy wise""")
VERBS_PAST = _w("""found carried watched painted moved opened closed cleaned dropped lifted followed
noticed bought sold repaired borrowed hid washed measured counted remembered admired touched pushed""")
VERBS_GO = _w("walked ran went hurried drove swam climbed wandered sailed jumped crept marched")
ADVERBS = _w("slowly quickly quietly carefully happily often never always again today yesterday early late")
WEEKDAYS = _w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _w("""January February March April May June July August September October November December""")
COMMON = _w("""about above after again air all almost along also always among and animal answer any around
ask away back ball bank base bed before begin behind below best better between body boat both bring build
call can care carry change child city class clear close color come common cost could country course cover
cross cut day deep direct dish distance dream drive dry during each early earth ease east eat edge end
enough even ever every example eye face fact fall family far farm father feel few field figure fill final
find fine first floor fly follow food foot force form found free friend front full game gave give glass go
gold good great ground group grow half hand happen head hear heart heat help here high hold home hope hour
how hundred idea inch interest iron just keep kind king know land language large last laugh lead learn
leave letter level life line list listen little live long look love low machine main make many mark mean
measure metal middle might mile mind minute money month more morning most mother mountain move much music
must name near need next night noise nothing notice number object ocean off open order other over page
paper part pass pattern people perhaps person picture piece place plain plan plane plant play point power
press print problem product pull push question quick rain reach read ready real record rest rich ride
rule safe same sail school science sea season second seem sentence serve set several shape shop short
shout show side sign silver simple since sing sister size skin sky sleep snow soft soldier some song soon
sound space speak special speed spell spring square stand star start state stay step still stop store
story street strong study such sugar summer sure surface system table take talk teach tell ten test than
thing think thought thousand through time together top toward town trade train travel tree true try turn
under unit until use usual valley value very village voice wait walk wall want war warm watch water wave
way weather week weight well what wheel when where while white whole why wide wild winter wish wonder wood
word work world write year yellow yes young""")

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin",
    "England": "London", "Belgium": "Brussels", "Hungary": "Budapest", "Egypt": "Cairo",
    "Japan": "Tokyo", "China": "Beijing", "India": "Delhi", "Peru": "Lima", "Kenya": "Nairobi",
    "Latvia": "Riga", "Estonia": "Tallinn", "Chile": "Santiago", "Ecuador": "Quito",
}

ALL_WORDS = sorted(set(COLORS + OBJECTS + ANIMALS + FOODS + PLACES + JOBS + ADJECTIVES + ADVERBS + COMMON))

_ONSETS = _w("b bl br c ch d dr f fl g gl gr h j k kr l m n p pl pr qu r s sh sk st t th tr v w z")
_VOWELS = _w("a e i o u ai ea oo")
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "x", "nd", "st"]


def made_up(rng: random.Random, syllables: int = 0) -> str:
    """A pronounceable word that is in no list."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
                   for _ in range(syllables or rng.randint(2, 3)))


def digits(rng: random.Random, count: int) -> str:
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in range(count - 1))


def any_word(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.75:
        return rng.choice(ALL_WORDS)
    if roll < 0.85:
        return rng.choice(NAMES + CITIES)
    return made_up(rng)


def clock(rng: random.Random) -> str:
    return f"{rng.randint(7, 22)}:{rng.choice(('00', '10', '15', '20', '30', '40', '45', '50'))}"


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def join_and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
