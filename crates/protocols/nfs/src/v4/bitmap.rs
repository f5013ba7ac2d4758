//! `bitmap4`: a set of small numbers (RFC 8881 §3.2), most often of attributes.

use rpc::xdr::{Malformed, Reader, Writer, Xdr};

/// Words that tell numbers apart.
const WORDS: usize = 3;

/// A set of the numbers 0 to 95, and of one number more that stands for all others: a peer may name
/// any. No attribute or operation of the known minor versions is above 95.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: [u32; WORDS],
    beyond: bool,
}

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Bitmap { words: [0; WORDS], beyond: false };
    /// The number that stands for itself and every higher number.
    pub const BEYOND: u32 = 32 * WORDS as u32;

    /// These numbers.
    pub const fn of(numbers: &[u32]) -> Self {
        let mut set = Bitmap::EMPTY;
        let mut at = 0;
        while at < numbers.len() {
            set = set.with(numbers[at]);
            at += 1;
        }
        set
    }

    /// The set with `number`.
    #[must_use]
    pub const fn with(mut self, number: u32) -> Self {
        if number < Self::BEYOND {
            self.words[(number / 32) as usize] |= 1 << (number % 32);
        } else {
            self.beyond = true;
        }
        self
    }

    /// The set without `number`.
    #[must_use]
    pub const fn without(self, number: u32) -> Self {
        self.minus(Bitmap::EMPTY.with(number))
    }

    /// `number` is in the set.
    pub const fn contains(self, number: u32) -> bool {
        !self.and(Bitmap::EMPTY.with(number)).is_empty()
    }

    /// No number is in the set.
    pub const fn is_empty(self) -> bool {
        !self.beyond && self.words[0] | self.words[1] | self.words[2] == 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Bitmap { words: [a & x, b & y, c & z], beyond: self.beyond && other.beyond }
    }

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Bitmap { words: [a | x, b | y, c | z], beyond: self.beyond || other.beyond }
    }

    /// The numbers of this set that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Bitmap { words: [a & !x, b & !y, c & !z], beyond: self.beyond && !other.beyond }
    }

    /// The numbers, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..=Self::BEYOND).filter(move |number| self.contains(*number))
    }
}

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A peer's words of zeros at the end are not kept. [`Bitmap::BEYOND`] is written as its own bit.
impl<'a> Xdr<'a> for Bitmap {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut set = Bitmap::EMPTY;
        for at in 0..from.length(u32::MAX as usize)? {
            let word = from.u32()?;
            match set.words.get_mut(at) {
                Some(place) => *place = word,
                None => set.beyond |= word != 0,
            }
        }
        Ok(set)
    }

    fn write(&self, to: &mut Writer<'_>) {
        let words = [self.words[0], self.words[1], self.words[2], self.beyond.into()];
        let length = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        to.u32(length as u32);
        words.iter().take(length).for_each(|word| to.u32(*word));
    }
}
