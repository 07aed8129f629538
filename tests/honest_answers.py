"""Honest answers of several kinds, which neither the audit nor its parts may call suspicious."""

ADDITION = "8 + 2 = 10"

PROSE = """\
Compound interest is interest that is paid not only on the money you first put in, but also on
the interest that this money has earned so far. Suppose you leave one thousand euros in a bank
that pays five percent a year. After twelve months there are one thousand and fifty. In the second
year the bank pays five percent of that larger sum, so you receive two euros and fifty cents more
than before. It sounds like little, and for a while it is. Over thirty years, however, the same
thousand grows to more than four thousand, although you never added another cent. The reason is
that growth itself keeps growing: each year starts from a higher step than the last. Debts behave in
the same way, which is why a credit card that charges twenty percent becomes dangerous so quickly.
Whoever saves wants to begin early; whoever owes should repay soon, and avoid borrowing for things
that lose their value."""

CODE = '''\
```python
def primes(limit: int) -> list[int]:
    """All primes up to limit, by the sieve of Eratosthenes."""
    sieve = [True] * (limit + 1)
    sieve[0:2] = [False, False]
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            for multiple in range(number * number, limit + 1, number):
                sieve[multiple] = False
    return [number for number, is_prime in enumerate(sieve) if is_prime]


def factors(number: int) -> list[int]:
    found = []
    for prime in primes(number):
        while number % prime == 0:
            found.append(prime)
            number //= prime
    return found


for n in range(10):
    print(n, factors(n))
```'''

LIST = """\
Some tips for speaking in public:

- **Know your subject.** Nothing calms more than being sure of what you say.
- **Practise aloud**, at least twice, with a clock.
- **Speak slowly.** Nervous people hurry.
- **Look at people**, not at your notes.
- **Pause** after what matters.
- **Expect questions**, and prepare for the hard ones."""

CHINESE = """\
复利是指利息不仅按照最初的本金计算，而且按照已经累积的利息计算。假设你在银行存入一千元，年利率为百分之五，
一年以后你就有一千零五十元。第二年，银行会以这个更大的数目为基础支付利息，所以你得到的钱比前一年多一些。
短期内差别很小，但是三十年之后，原来的一千元会变成四千多元，尽管你从来没有再存过一分钱。债务也是如此，
因此信用卡的高额利率很快就会变得危险。想要储蓄的人应该尽早开始，欠债的人则应该尽快偿还。"""

TABLE = """\
| n | n² | n³ | odd |
|---|----|----|-----|
| 1 | 1 | 1 | 1 |
| 2 | 4 | 8 | 0 |
| 3 | 9 | 27 | 1 |
| 4 | 16 | 64 | 0 |
| 5 | 25 | 125 | 1 |"""

NUMBERS = """\
1 0 0 0
0 1 0 0
0 0 1 0
0 0 0 1"""

HONEST = (ADDITION, PROSE, CODE, LIST, CHINESE, TABLE, NUMBERS, "10", "", "I do not know.")
