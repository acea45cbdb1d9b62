"""The prompts that are measured: plain text, since the demonstration model is a base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Category = Literal["code edit", "json extraction", "prose", "code"]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt, what kind of work it stands for, and how much of the answer is measured."""

    name: str
    category: Category
    text: str
    max_tokens: int = 128


_SHOP = '''\
class Basket:
    """The goods that a customer wants to buy."""

    def __init__(self, customer, currency="EUR"):
        self.customer = customer
        self.currency = currency
        self.items = []

    def add(self, name, price, quantity=1):
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
        self.items.append((name, price, quantity))

    def total(self):
        return sum(price * quantity for _, price, quantity in self.items)

    def describe(self):
        lines = [f"{quantity} x {name}: {price}" for name, price, quantity in self.items]
        return "\\n".join(lines)
'''

_INVENTORY = """\
def read_inventory(path):
    inventory = {}
    with open(path) as file:
        for line in file:
            name, count = line.rsplit(",", 1)
            inventory[name.strip()] = int(count)
    return inventory


def write_inventory(path, inventory):
    with open(path, "w") as file:
        for name, count in sorted(inventory.items()):
            file.write(f"{name}, {count}\\n")


def remove_items(inventory, order):
    for name, count in order.items():
        if inventory.get(name, 0) < count:
            raise ValueError(f"not enough of {name}")
        inventory[name] -= count
    return inventory
"""


def _edit(file_name: str, code: str, change: str) -> str:
    return (
        f"The file {file_name} before the change:\n\n```python\n{code}```\n\n"
        f"The file {file_name} after the change. {change} Everything else stays as it was:\n\n"
        "```python\n"
    )


_PEOPLE = """\
Each note is turned into one line of JSON.

Note: Anna Berger, 34, works as a nurse in Vienna. Her phone number is 555-0134.
JSON: {"name": "Anna Berger", "age": 34, "occupation": "nurse", "city": "Vienna", \
"phone": "555-0134"}

Note: Tom Okafor is a 51 year old carpenter from Lagos, phone 555-0187.
JSON: {"name": "Tom Okafor", "age": 51, "occupation": "carpenter", "city": "Lagos", \
"phone": "555-0187"}

Note: In Lima you can reach the 28 year old teacher Rosa Quispe under 555-0119.
JSON: {"name": "Rosa Quispe", "age": 28, "occupation": "teacher", "city": "Lima", \
"phone": "555-0119"}

Note: Henrik Lund, a 45 year old pilot living in Bergen, has the number 555-0162.
JSON:"""

_ORDERS = """\
Orders as text and as JSON.

Text: Order 7001 of 3 May: 4 chairs at 39.50 and 1 table at 120.00, to be sent to Leeds.
JSON: {"order_id": 7001, "date": "3 May", "items": [{"name": "chair", "quantity": 4, \
"price": 39.50}, {"name": "table", "quantity": 1, "price": 120.00}], "destination": "Leeds"}

Text: Order 7002 of 5 May: 2 lamps at 18.00 and 6 bulbs at 2.25, to be sent to York.
JSON: {"order_id": 7002, "date": "5 May", "items": [{"name": "lamp", "quantity": 2, \
"price": 18.00}, {"name": "bulb", "quantity": 6, "price": 2.25}], "destination": "York"}

Text: Order 7003 of 9 May: 1 desk at 210.00 and 2 shelves at 64.75, to be sent to Bath.
JSON:"""

DEMO_PROMPTS: Final = (
    BenchPrompt(
        "shop-edit",
        "code edit",
        _edit("basket.py", _SHOP, "The attribute items is now called entries."),
        160,
    ),
    BenchPrompt("people-json", "json extraction", _PEOPLE, 160),
    BenchPrompt(
        "lighthouse-prose",
        "prose",
        "The lighthouse stood at the end of a long road, and nobody in the village remembered who",
    ),
    BenchPrompt(
        "primes-code",
        "code",
        '"""Prime numbers, perfect numbers and related sequences."""\n\nimport math\n\n\n'
        "def primes_below(limit):\n",
    ),
)

BAR_PROMPTS: Final = (
    *DEMO_PROMPTS,
    BenchPrompt(
        "inventory-edit",
        "code edit",
        _edit("inventory.py", _INVENTORY, "The name inventory is now stock in remove_items."),
        160,
    ),
    BenchPrompt("orders-json", "json extraction", _ORDERS, 160),
    BenchPrompt(
        "winter-prose", "prose", "My grandmother used to say that the winter of that year was"
    ),
    BenchPrompt(
        "parser-code",
        "code",
        '"""A small parser for arithmetic expressions."""\n\n\nclass Parser:\n',
    ),
)

_SCORES = """\
def average(scores):
    if not scores:
        return 0.0
    return sum(scores) / len(scores)


def best(scores, count=3):
    return sorted(scores, reverse=True)[:count]


def report(student, scores):
    print(f"Student: {student}")
    print(f"Average score: {average(scores):.1f}")
    for number, score in enumerate(best(scores), 1):
        print(f"  {number}. {score}")
    if average(scores) < 50:
        print("More practice is needed.")
    return average(scores)
"""

_QUEUE = """\
class JobQueue {
  constructor(limit) {
    this.limit = limit;
    this.jobs = [];
  }

  push(job) {
    if (this.jobs.length >= this.limit) {
      throw new Error("the queue is full");
    }
    this.jobs.push(job);
    return this.jobs.length;
  }

  pop() {
    if (this.jobs.length === 0) {
      return null;
    }
    return this.jobs.shift();
  }
}
"""

_PLANTS = """\
The garden book as a table.

Entry: We planted 12 tomatoes of the kind Roma on 4 April in bed 3, they need 2 litres a day.
CSV: tomato,Roma,12,4 April,bed 3,2

Entry: On 9 April 30 carrots of the kind Nantes went into bed 1, with 1 litre a day.
CSV: carrot,Nantes,30,9 April,bed 1,1

Entry: Bed 5 has got 8 pumpkins of the kind Hokkaido on 2 May, which need 4 litres a day.
CSV: pumpkin,Hokkaido,8,2 May,bed 5,4

Entry: 16 peppers of the kind Bianca were planted on 11 May in bed 2 and need 3 litres a day.
CSV:"""

_FLIGHTS = """\
Flight messages and their records.

Message: BT 214 from Riga to Oslo leaves gate C4 at 09:35 with 112 passengers.
Record: {"flight": "BT 214", "from": "Riga", "to": "Oslo", "gate": "C4", "departure": "09:35", \
"passengers": 112}

Message: From gate A11 flight IB 3170 goes from Madrid to Porto at 14:05 with 87 passengers.
Record: {"flight": "IB 3170", "from": "Madrid", "to": "Porto", "gate": "A11", \
"departure": "14:05", "passengers": 87}

Message: At 17:50 flight LO 281 with 140 passengers leaves gate B2 from Warsaw to London.
Record:"""

DRAFTER_PROMPTS: Final = (
    *BAR_PROMPTS,
    BenchPrompt(
        "scores-edit",
        "code edit",
        _edit("scores.py", _SCORES, "The function report now calls the student a pupil."),
        160,
    ),
    BenchPrompt(
        "queue-edit",
        "code edit",
        _edit("queue.js", _QUEUE, "The method push now returns nothing.").replace("python", "js"),
        160,
    ),
    BenchPrompt("plants-csv", "json extraction", _PLANTS, 160),
    BenchPrompt("flights-json", "json extraction", _FLIGHTS, 160),
    BenchPrompt(
        "harbour-prose",
        "prose",
        "In the summer when I was nine years old my father took me to the harbour to see",
    ),
    BenchPrompt(
        "rivers-prose",
        "prose",
        "Rivers have shaped the history of cities more than any other feature of the land.",
    ),
    BenchPrompt(
        "stack-code",
        "code",
        '"""Stacks and queues."""\n\n\nclass Stack:\n    def __init__(self):\n',
    ),
    BenchPrompt(
        "dates-code",
        "code",
        "from datetime import date, timedelta\n\n\ndef working_days(start, end):\n",
    ),
)
"""Four of each kind: what drafters are compared on."""

_LOSSLESS_OPENINGS: Final = (
    "The capital of France is",
    "def quicksort(values):",
    "Once upon a time there was a fox who",
    "1, 2, 3, 4, 5, 6,",
    "To be, or not to be, that is",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name":',
    "Dear Sir or Madam,\n\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "The main causes of the war were",
    "Ingredients:\n- 2 eggs\n- 100 g sugar\n",
    "SELECT name, price FROM products WHERE",
    "In mathematics, a group is",
    "red, green, blue, red, green, blue, red,",
    "# How to plant a tree\n\n1.",
)

LOSSLESS_PROMPTS: Final = (
    *(prompt.text for prompt in BAR_PROMPTS if prompt.category in {"code edit", "json extraction"}),
    *(prompt.text for prompt in DEMO_PROMPTS if prompt.category in {"prose", "code"}),
    *_LOSSLESS_OPENINGS,
)
