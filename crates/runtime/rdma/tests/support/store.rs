//! [`Store`]: an upper layer's memory for the data of RDMA Reads. It answers as configured, records
//! what was placed where, and checks every request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rdma::{DataSink, Fill, Next, QueuePair};
use runtime::{Buf, Chain, Region};

/// The content of untouched memory.
const UNTOUCHED: u8 = 0xee;
/// Bytes between the places of two reads.
const GAP: usize = 1000;
const BLOCK: usize = 512;

/// How the store answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    /// Places all available data.
    All,
    /// Places nothing.
    Nothing,
    /// Places whole blocks of 512 bytes, as a disk does.
    Blocks,
    /// Promises to place all, then refuses.
    Refuses,
    /// Places all except this number of bytes at the start of each piece.
    Aside(usize),
    /// Promises more than is available.
    Greedy,
    /// Promises pieces of no bytes.
    Empty,
    /// Random answers.
    Random,
    /// Places all, but refuses between these offsets of a read.
    Except(u64, u64),
}

impl Mood {
    pub const MOST: [Self; 9] = [
        Self::All,
        Self::Nothing,
        Self::Blocks,
        Self::Refuses,
        Self::Aside(1),
        Self::Aside(777),
        Self::Greedy,
        Self::Empty,
        Self::Random,
    ];

    /// Whether any data can be placed.
    pub fn places(self) -> bool {
        !matches!(self, Self::Nothing | Self::Refuses | Self::Empty)
    }
}

/// Memory with a place for each read, by its id from 0 on.
pub struct Store {
    region: Arc<Region>,
    /// Start and length of each place.
    places: Vec<(usize, usize)>,
    mood: Cell<Mood>,
    random: RefCell<SmallRng>,
    /// Id, offset and length of the placed data.
    placed: RefCell<Vec<(u64, usize, usize)>>,
    /// The last promise: id, offset and number of bytes.
    promised: Cell<Option<(u64, u64, usize)>>,
    calls: Cell<u64>,
}

impl Store {
    pub fn new(lens: &[usize], mood: Mood, seed: u64) -> Rc<Self> {
        let mut at = GAP;
        let mut places = Vec::new();
        for &len in lens {
            places.push((at, len));
            at += len + GAP;
        }
        let region = Region::new(at).expect("memory");
        region.fill(0, at, UNTOUCHED).expect("within");
        Rc::new(Self {
            region,
            places,
            mood: Cell::new(mood),
            random: RefCell::new(SmallRng::seed_from_u64(seed)),
            placed: RefCell::default(),
            promised: Cell::default(),
            calls: Cell::default(),
        })
    }

    /// Makes this the sink for later reads of `pair`.
    pub fn serve(self: &Rc<Self>, pair: &QueuePair) {
        let weak = Rc::downgrade(self);
        pair.set_data_sink(weak);
    }

    /// Number of calls.
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Bytes placed here.
    pub fn total(&self) -> u64 {
        self.placed.borrow().iter().map(|(.., len)| *len as u64).sum()
    }

    /// Whether the bytes `from..to` of a read were all placed here, in order.
    pub fn has(&self, id: u64, from: usize, to: usize) -> bool {
        let mut at = from;
        for (.., offset, len) in self.placed.borrow().iter().filter(|(of, ..)| *of == id) {
            if *offset <= at && offset + len > at {
                at = offset + len;
            }
        }
        at >= to
    }

    /// Whether any byte of this read from `offset` on was placed here.
    pub fn has_any(&self, id: u64, offset: usize) -> bool {
        self.placed.borrow().iter().any(|(of, at, len)| *of == id && at + len > offset)
    }

    /// Checks the data of a read: it equals the sent data, and its placed parts are at their place.
    #[track_caller]
    pub fn check(&self, id: u64, sent: &[u8], data: &Chain) {
        assert_eq!(data.len(), sent.len(), "read {id}");
        assert!(data.to_vec() == sent, "read {id} brought something else");
        let (mut at, mut here) = (0, 0);
        for buf in data {
            if buf.is_region() {
                assert!(self.region.is_at(self.places[id as usize].0 + at, buf), "read {id} at {at}");
                here += buf.len();
            }
            at += buf.len();
        }
        let placed = self.placed.borrow();
        assert_eq!(here, placed.iter().filter(|(of, ..)| *of == id).map(|(.., len)| len).sum::<usize>());
    }

    /// Checks that exactly the placed memory was written, with the sent data.
    #[track_caller]
    pub fn check_memory<'a>(&self, sent: impl Fn(u64) -> &'a [u8]) {
        let mut expected = vec![UNTOUCHED; self.region.len()];
        for &(id, offset, len) in self.placed.borrow().iter() {
            let at = self.places[id as usize].0 + offset;
            expected[at..at + len].copy_from_slice(&sent(id)[offset..offset + len]);
        }
        let mut found = vec![0; self.region.len()];
        self.region.read_into(0, &mut found).expect("within");
        assert!(found == expected, "memory was touched that was not lent");
    }

    /// Whether the byte before `offset` was placed.
    fn ends_at(&self, id: u64, offset: u64) -> bool {
        self.placed.borrow().iter().any(|(of, at, len)| *of == id && (at + len) as u64 == offset)
    }
}

impl DataSink for Store {
    fn next(&self, id: u64, offset: u64, wanted: usize, there: usize, any: bool) -> Next {
        self.calls.set(self.calls.get() + 1);
        let (_, len) = self.places[id as usize];
        assert!(wanted > 0 && there > 0 && offset as usize + wanted <= len);
        assert!(any || !self.ends_at(id, offset), "read {id} at {offset} goes on");
        let here = wanted.min(there);
        let next = match self.mood.get() {
            Mood::All | Mood::Refuses | Mood::Except(..) => Next::Place(here),
            Mood::Nothing => Next::Rest,
            Mood::Blocks => {
                let skew = offset as usize % BLOCK;
                match (BLOCK - skew) % BLOCK {
                    0 if here >= BLOCK => Next::Place(here - here % BLOCK),
                    0 => Next::Buffer(here),
                    until => Next::Buffer(until),
                }
            }
            Mood::Aside(n) if offset as usize % 2 == 0 => Next::Buffer(n),
            Mood::Aside(_) => Next::Place(here),
            Mood::Greedy if offset % 3 == 2 => Next::Buffer(usize::MAX),
            Mood::Greedy => Next::Place(usize::MAX),
            Mood::Empty if offset % 2 == 0 => Next::Place(0),
            Mood::Empty => Next::Buffer(0),
            Mood::Random => {
                let mut random = self.random.borrow_mut();
                match random.random_range(0..8) {
                    0 => Next::Rest,
                    1 => Next::Buffer(random.random_range(1..=here)),
                    2 => Next::Buffer(random.random_range(1..100)),
                    3 => Next::Place(random.random_range(1..=here)),
                    _ => Next::Place(here),
                }
            }
        };
        if let Next::Place(len) = next {
            self.promised.set(Some((id, offset, len)));
        }
        next
    }

    fn place(&self, id: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        self.calls.set(self.calls.get() + 1);
        let (of, at, most) = self.promised.take().expect("only what was said to have a place");
        assert_eq!((of, at), (id, offset));
        assert!(len > 0 && len <= most);
        let refuses = match self.mood.get() {
            Mood::Refuses => true,
            Mood::Random => self.random.borrow_mut().random_range(0..6) == 0,
            Mood::Except(from, to) => (from..to).contains(&offset),
            _ => false,
        };
        if refuses {
            return None;
        }
        let (start, room) = self.places[id as usize];
        let offset = offset as usize;
        assert!(offset + len <= room);
        let mut range = self.region.destination(start + offset, len).expect("within");
        let filled = fill(&mut range);
        assert!(filled <= len);
        if filled > 0 {
            self.placed.borrow_mut().push((id, offset, filled));
        }
        Some(self.region.slice(start + offset, filled).expect("within"))
    }
}
