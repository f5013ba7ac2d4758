//! Mutations of an input that follow from a seed number alone, for replays without libFuzzer.

/// A small generator of numbers (SplitMix64); the same seed gives the same numbers for ever.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0; near enough to even.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }
}

/// Bytes that break length checks and codes.
const EDGES: [u8; 10] = [0x00, 0x01, 0x03, 0x04, 0x10, 0x7f, 0x80, 0xfe, 0xff, b'='];

/// A changed copy of `input`, with one to eight changes; `other` is what a splice takes its end
/// from.
pub fn mutate(input: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=rng.below(8) {
        if out.is_empty() {
            out.push(rng.draw() as u8);
        }
        let at = rng.below(out.len());
        match rng.below(10) {
            0 => out[at] ^= 1 << rng.below(8),
            1 => out[at] = rng.draw() as u8,
            2 => out[at] = EDGES[rng.below(EDGES.len())],
            3 => out.truncate(at),
            4 => out.insert(at, EDGES[rng.below(EDGES.len())]),
            5 => drop(out.remove(at)),
            6 => {
                let end = at + rng.below(out.len() - at) + 1;
                let piece = out[at..end.min(at + 256)].to_vec();
                let to = rng.below(out.len() + 1);
                out.splice(to..to, piece);
            }
            7 => {
                // A length field: a word near an edge.
                let word = (EDGES[rng.below(EDGES.len())] as u32).rotate_right(8 * rng.below(4) as u32);
                let width = [2, 3, 4][rng.below(3)];
                for (byte, new) in out[at..].iter_mut().take(width).zip(word.to_be_bytes()) {
                    *byte = new;
                }
            }
            8 => out[at] = out[at].wrapping_add(if rng.below(2) == 0 { 1 } else { 0xff }),
            _ => {
                let from = rng.below(other.len() + 1);
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
        }
        out.truncate(1 << 16);
    }
    out
}
