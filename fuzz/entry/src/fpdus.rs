//! FPDUs of an input: segments that are right but for what the input changes, with CRCs and markers
//! that are right, which no mutation would make.

use crate::input::{Input, Seed};
use iwarp::crc::crc32c;

/// Makes the CRC of each FPDU right, and what each marker points to: no mutation would get past
/// them.
pub fn repair(wire: &mut [u8], markers: bool) {
    // Positions of the bytes that belong to no marker.
    let at: Vec<usize> = (0..wire.len()).filter(|at| !markers || at % 512 >= 4).collect();
    let (mut first, mut start) = (0, 0);
    while let [high, low, ..] = at[first..] {
        let len = 2 + usize::from(u16::from_be_bytes([wire[high], wire[low]]));
        let crc = first + len.next_multiple_of(4);
        let Some(&[a, b, c, d]) = at.get(crc..crc + 4) else { return };
        for marker in (start..d).filter(|at| markers && at % 512 == 0) {
            let pointer = marker.saturating_sub(high) as u32;
            wire[marker..marker + 4].copy_from_slice(&pointer.to_be_bytes());
        }
        let sum = crc32c(&wire[start..a]);
        for (at, byte) in [a, b, c, d].into_iter().zip(sum) {
            wire[at] = byte;
        }
        (first, start) = (crc + 4, d + 1);
    }
}

/// Up to 16 segments as a stream of FPDUs, behind an empty Send if `hello`. For each: control
/// bytes, which STag or queue, a twist, offset, payload. `stag` is what a number means.
pub fn wire(input: &mut Input<'_>, markers: bool, hello: bool, stag: impl Fn(u8) -> u32) -> Vec<u8> {
    let mut msn = [1u32; 4];
    let mut mo = 0u32;
    let mut wire = Vec::new();
    if hello {
        wire.extend_from_slice(&[
            0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        msn[0] = 2;
    }
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let (control, rdmap, which, twist) = (input.u8(), input.u8(), input.u8(), input.u8());
        let offset = match twist & 3 {
            0 => u64::from(input.u16()),
            1 => u64::MAX - u64::from(input.u16()),
            2 => 1 << 33 | u64::from(input.u16()),
            _ => input.u64(),
        };
        let payload = input.chunk();
        let payload = &payload[..payload.len().min(2000)];
        // Version 1 of both, unless twisted.
        let (control, rdmap) =
            if twist & 4 == 0 { (control & 0xfc | 1, rdmap & 0x0f | 0x40) } else { (control, rdmap) };
        let mut ulpdu = vec![control, rdmap];
        if control & 0x80 != 0 {
            ulpdu.extend_from_slice(&stag(which).to_be_bytes());
            ulpdu.extend_from_slice(&offset.to_be_bytes());
            ulpdu.extend_from_slice(payload);
        } else {
            let queue = match rdmap & 0x0f {
                1 | 10 => 1usize,
                7 => 2,
                11 => 3,
                _ => 0,
            };
            let last = control & 0x40 != 0;
            ulpdu.extend_from_slice(&stag(which).to_be_bytes());
            ulpdu.extend_from_slice(&(queue as u32 + u32::from(twist >> 6)).to_be_bytes());
            ulpdu.extend_from_slice(&msn[queue].wrapping_add(u32::from(twist >> 5 & 1)).to_be_bytes());
            let at = if queue == 0 { mo } else { 0 };
            ulpdu.extend_from_slice(&at.wrapping_add(u32::from(twist >> 4 & 1)).to_be_bytes());
            match rdmap & 0x0f {
                1 => {
                    // A Read Request of one of the STags.
                    ulpdu.extend_from_slice(&[9; 12]);
                    ulpdu.extend_from_slice(&(payload.len() as u32).to_be_bytes());
                    ulpdu.extend_from_slice(&stag(which).to_be_bytes());
                    ulpdu.extend_from_slice(&offset.to_be_bytes());
                }
                10 => {
                    ulpdu.extend_from_slice(&[0, 0, 0, twist >> 3 & 1, 0, 0, 0, 1]);
                    ulpdu.extend_from_slice(&stag(which).to_be_bytes());
                    ulpdu.extend_from_slice(&offset.to_be_bytes());
                    ulpdu.extend_from_slice(&[5; 32]);
                }
                _ => ulpdu.extend_from_slice(payload),
            }
            if last {
                msn[queue] += 1;
                mo = if queue == 0 { 0 } else { mo };
            } else if queue == 0 {
                mo += payload.len() as u32;
            }
        }
        let start = wire.len();
        wire.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
        wire.extend_from_slice(&ulpdu);
        wire.resize(start + (wire.len() - start).next_multiple_of(4) + 4, 0);
    }
    if markers {
        wire = wire.chunks(508).flat_map(|piece| [&[0; 4], piece].concat()).collect();
    }
    repair(&mut wire, markers);
    wire
}

/// A segment of [`wire`], where the version's bits are added.
pub fn segment(control: u8, opcode: u8, which: u8, twist: u8, offset: u16, payload: &[u8]) -> Seed {
    Seed::new().bytes([control, opcode, which, twist]).bytes(offset.to_be_bytes()).chunk(payload)
}

/// Two bytes and the segments behind them.
pub fn joined(flags: u8, cut: u8, segments: impl IntoIterator<Item = Seed>) -> Seed {
    segments.into_iter().fold(Seed::new().bytes([flags, cut]), |seed, next| seed.bytes(next.into_bytes()))
}
