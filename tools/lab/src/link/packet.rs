//! The reads of a TUN device with offloads: the virtio-net header and an IP packet, or one
//! super-packet for many packets of the wire (virtio 1.2 §5.1.6). Determines those packets, and
//! makes the super-packet of any consecutive ones. Checks every length: programs in the namespaces
//! can send any bytes.

use std::ops::Range;

/// The virtio-net header before each packet, bytes.
pub(crate) const VNET: usize = 10;

/// The maximum length of a super-packet's headers, IP and transport together.
const MOST_HEADERS: usize = 512;

/// Space for the headers of one write.
pub(crate) type Headers = [u8; VNET + MOST_HEADERS];

/// `flags`: the checksum from `csum_start` on is not yet computed.
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// TCP's flags FIN, PSH and CWR (RFC 9293 §3.1, RFC 3168 §6.1).
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Why a read is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is multicast, which a link of two ends does not carry.
    Multicast,
    /// It is not an IP packet, or its headers contradict one another.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// Segmentation of a super-packet into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    transport: Transport,
    /// The offset of the transport header from the IP header's first byte.
    transport_at: usize,
    /// The length of the IP and transport headers together.
    headers: usize,
    /// The payload of each packet but the last.
    segment: usize,
}

/// One read of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    six: bool,
    /// The IP packet's length as read.
    len: usize,
    cut: Option<Cut>,
}

impl Frame {
    /// Parses a read, which begins with the virtio-net header.
    pub(crate) fn parse(read: &[u8]) -> Result<Self, Refused> {
        let (vnet, ip) = read.split_at_checked(VNET).ok_or(Refused::Malformed)?;
        let six = match ip.first().map(|byte| byte >> 4) {
            Some(4) if ip.len() >= 20 => false,
            Some(6) if ip.len() >= 40 => true,
            _ => return Err(Refused::Malformed),
        };
        if six && ip[24] == 0xff || !six && (ip[16] >> 4 == 0xe || ip[16..20] == [0xff; 4]) {
            return Err(Refused::Multicast);
        }
        let cut = match vnet[1] & !GSO_ECN {
            GSO_NONE => None,
            kind => Some(Cut::parse(vnet, ip, six, kind).ok_or(Refused::Malformed)?),
        };
        Ok(Self { six, len: ip.len(), cut })
    }

    /// The number of packets of the wire in it.
    pub(crate) fn packets(&self) -> u32 {
        self.cut.map_or(1, |cut| (self.len - cut.headers).div_ceil(cut.segment).max(1) as u32)
    }

    /// The length of one packet, with its IP header.
    pub(crate) fn packet_len(&self, at: u32) -> usize {
        self.cut.map_or(self.len, |cut| cut.headers + self.payload(cut, at, 1).len())
    }

    /// The range of the payload of consecutive packets in the IP packet.
    fn payload(&self, cut: Cut, first: u32, count: u32) -> Range<usize> {
        let start = (cut.headers + first as usize * cut.segment).min(self.len);
        let end = (cut.headers + (first + count) as usize * cut.segment).min(self.len);
        start..end
    }

    /// The bytes to write for `count` packets from `first` on: headers built in `into`, and the
    /// payload within the read. `None` means the read unchanged.
    pub(crate) fn row<'a>(
        &self,
        read: &'a [u8],
        first: u32,
        count: u32,
        into: &'a mut Headers,
    ) -> Option<(&'a [u8], &'a [u8])> {
        let cut = self.cut?;
        let all = self.packets();
        if first == 0 && count >= all {
            return None;
        }
        let payload = self.payload(cut, first, count);
        let from = read.get(..VNET + cut.headers)?;
        let bytes = into.get_mut(..VNET + cut.headers)?;
        bytes.copy_from_slice(from);
        let (vnet, ip) = bytes.split_at_mut(VNET);
        if count == 1 {
            vnet[1] = GSO_NONE;
            vnet[4..6].fill(0);
        }
        vnet[2..4].copy_from_slice(&(cut.headers as u16).to_ne_bytes());
        let len = cut.headers + payload.len();
        if self.six {
            // RFC 8200 §3: the payload length excludes the fixed header.
            put(ip, 4, (len - 40) as u16);
        } else {
            put(ip, 2, len as u16);
            let id = u16::from_be_bytes([ip[4], ip[5]]);
            put(ip, 4, id.wrapping_add(first as u16));
            put(ip, 10, 0);
            let sum = !fold(sum(&ip[..cut.transport_at], 0));
            put(ip, 10, sum);
        }
        let transport_len = len - cut.transport_at;
        let pseudo = self.pseudo_header(ip, cut, transport_len);
        let header = &mut ip[cut.transport_at..];
        match cut.transport {
            Transport::Tcp => {
                let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                let moved = sequence.wrapping_add((first as usize * cut.segment) as u32);
                header[4..8].copy_from_slice(&moved.to_be_bytes());
                if first + count < all {
                    header[13] &= !FIN_PSH;
                }
                if first > 0 {
                    header[13] &= !CWR;
                }
                put(header, 16, pseudo);
            }
            Transport::Udp => {
                put(header, 4, transport_len as u16);
                put(header, 6, pseudo);
            }
        }
        Some((bytes, read.get(VNET + payload.start..VNET + payload.end)?))
    }

    /// The checksum field of a packet without a computed checksum: the sum of the pseudo-header,
    /// not inverted.
    fn pseudo_header(&self, ip: &[u8], cut: Cut, transport_len: usize) -> u16 {
        let addresses = if self.six { &ip[8..40] } else { &ip[12..20] };
        let protocol = match cut.transport {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        };
        fold(sum(addresses, protocol + transport_len as u64))
    }
}

impl Cut {
    fn parse(vnet: &[u8], ip: &[u8], six: bool, kind: u8) -> Option<Self> {
        let transport = match (kind, six) {
            (GSO_TCPV4, false) | (GSO_TCPV6, true) => Transport::Tcp,
            (GSO_UDP_L4, _) => Transport::Udp,
            _ => return None,
        };
        let field = |at: usize| usize::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
        let (segment, transport_at) = (field(4), field(6));
        if vnet[0] & NEEDS_CSUM == 0 || segment == 0 {
            return None;
        }
        // IPv6 extension headers may precede the transport header.
        let fits = if six { transport_at >= 40 } else { transport_at == usize::from(ip[0] & 0xf) * 4 };
        if !fits || transport_at < 20 {
            return None;
        }
        let header = match transport {
            Transport::Tcp => usize::from(ip.get(transport_at + 12)? >> 4) * 4,
            Transport::Udp => 8,
        };
        let headers = transport_at + header;
        let whole = transport == Transport::Udp || header >= 20;
        (whole && headers <= ip.len() && headers <= MOST_HEADERS).then_some(Self {
            transport,
            transport_at,
            headers,
            segment,
        })
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of 16-bit words (RFC 1071), added to `start`.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut pairs = bytes.chunks_exact(2);
    let mut total = start;
    for pair in pairs.by_ref() {
        total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    total + pairs.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A TCP super-packet as a kernel makes it: 12 bytes of options, without a computed checksum.
    fn super_packet(six: bool, payload: usize, segment: u16, flags: u8) -> Vec<u8> {
        let ip_len = if six { 40 } else { 20 };
        let headers = ip_len + 32;
        let mut read = vec![0; VNET + headers + payload];
        read[0] = NEEDS_CSUM;
        read[1] = if six { GSO_TCPV6 } else { GSO_TCPV4 };
        read[4..6].copy_from_slice(&segment.to_ne_bytes());
        read[6..8].copy_from_slice(&(ip_len as u16).to_ne_bytes());
        read[8..10].copy_from_slice(&16u16.to_ne_bytes());
        let ip = &mut read[VNET..];
        let len = ip.len();
        if six {
            ip[0] = 0x60;
            put(ip, 4, (len - 40) as u16);
            ip[6] = 6;
            ip[8..24].copy_from_slice(&[0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            ip[24..40].copy_from_slice(&[0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            ip[0] = 0x45;
            put(ip, 2, len as u16);
            put(ip, 4, 0xfffe);
            ip[9] = 6;
            ip[12..20].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
        }
        ip[ip_len + 4..ip_len + 8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
        ip[ip_len + 12] = 0x80;
        ip[ip_len + 13] = flags;
        for (at, byte) in ip[headers..].iter_mut().enumerate() {
            *byte = (at * 7) as u8;
        }
        if !six {
            let checksum = !fold(sum(&ip[..20], 0));
            put(ip, 10, checksum);
        }
        let addresses = if six { ip[8..40].to_vec() } else { ip[12..20].to_vec() };
        put(ip, ip_len + 16, fold(sum(&addresses, 6 + (len - ip_len) as u64)));
        read
    }

    /// The packets that a receiver sees, with sequence number, payload and flags. Checks all fields
    /// first.
    fn packets_of(written: &[u8], segment: usize) -> Vec<(u32, Vec<u8>, u8)> {
        let frame = Frame::parse(written).expect("what was made is a packet");
        let ip = &written[VNET..];
        let (transport_at, total) = if frame.six {
            (40, 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])))
        } else {
            assert_eq!(fold(sum(&ip[..20], 0)), 0xffff, "the header's checksum is right");
            (20, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
        };
        assert_eq!(total, ip.len(), "the length is that of what was written");
        let addresses = if frame.six { &ip[8..40] } else { &ip[12..20] };
        let checksum = u16::from_be_bytes([ip[transport_at + 16], ip[transport_at + 17]]);
        assert_eq!(
            checksum,
            fold(sum(addresses, 6 + (total - transport_at) as u64)),
            "the pseudo-header's sum"
        );
        let sequence = u32::from_be_bytes(ip[transport_at + 4..transport_at + 8].try_into().unwrap());
        let payload = &ip[transport_at + 32..];
        assert_eq!(frame.packets() as usize, payload.len().div_ceil(segment).max(1));
        payload
            .chunks(segment)
            .enumerate()
            .map(|(at, part)| {
                (sequence.wrapping_add((at * segment) as u32), part.to_vec(), ip[transport_at + 13])
            })
            .collect()
    }

    proptest! {
        #[test]
        fn rows_of_a_super_packet_together_are_the_super_packet(
            six: bool, payload in 1usize..60_000, segment in 500u16..65_500, cuts in prop::collection::vec(1u32..20, 1..40)
        ) {
            let read = super_packet(six, payload, segment, 0x80 | 0x19);
            let segment = usize::from(segment);
            let frame = Frame::parse(&read).unwrap();
            let all = frame.packets();
            prop_assert_eq!(all as usize, payload.div_ceil(segment));
            let mut cuts = cuts.into_iter().cycle();
            let (mut first, mut bytes, mut headers) = (0, Vec::new(), [0; VNET + MOST_HEADERS]);
            let mut lens = Vec::new();
            while first < all {
                let count = cuts.next().unwrap_or(1).min(all - first);
                let written = match frame.row(&read, first, count, &mut headers) {
                    Some((headers, payload)) => [headers, payload].concat(),
                    None => read.clone(),
                };
                if first > 0 && first + count < all && !six {
                    prop_assert_eq!(u16::from_be_bytes([written[VNET + 4], written[VNET + 5]]), 0xfffe_u16.wrapping_add(first as u16));
                }
                for (sequence, part, flags) in packets_of(&written, segment) {
                    prop_assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(bytes.len() as u32));
                    bytes.extend_from_slice(&part);
                    lens.push(part.len());
                    prop_assert_eq!(flags & FIN_PSH != 0, first + count == all, "the end is said at the end");
                    prop_assert_eq!(flags & CWR != 0, first == 0);
                    prop_assert!(flags & 0x10 != 0);
                }
                first += count;
            }
            let headers = if six { 72 } else { 52 };
            prop_assert_eq!(&bytes[..], &read[VNET + headers..]);
            for (at, len) in lens.iter().enumerate() {
                prop_assert_eq!(frame.packet_len(at as u32), len + headers);
            }
        }

        #[test]
        fn nothing_that_is_read_makes_it_stumble(mut read in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..6, plausible: bool) {
            if plausible && read.len() > VNET + 20 {
                read[0] = NEEDS_CSUM;
                read[1] = kind;
                read[6..8].copy_from_slice(&20u16.to_ne_bytes());
                read[VNET] = 0x45;
                read[VNET + 16] = 10;
            }
            if let Ok(frame) = Frame::parse(&read) {
                let all = frame.packets();
                let total: usize = (0..all).map(|at| frame.packet_len(at)).sum();
                prop_assert!(total >= frame.len);
                let mut headers = [0; VNET + MOST_HEADERS];
                for first in [0, all / 2, all - 1] {
                    let _ = frame.row(&read, first, 1, &mut headers);
                }
            }
        }
    }

    #[test]
    fn a_udp_super_packet_is_cut_into_datagrams() {
        let mut read = super_packet(false, 4000, 1400, 0);
        // The UDP header has 8 bytes: the rest of the former TCP header is payload.
        read[1] = GSO_UDP_L4;
        let frame = Frame::parse(&read).unwrap();
        assert_eq!(frame.packets(), 3);
        let mut headers = [0; VNET + MOST_HEADERS];
        let (header, payload) = frame.row(&read, 2, 1, &mut headers).unwrap();
        assert_eq!(payload.len(), 4024 - 2800);
        assert_eq!(u16::from_be_bytes([header[VNET + 24], header[VNET + 25]]) as usize, payload.len() + 8);
        assert_eq!(header[1], GSO_NONE);
    }

    #[test]
    fn what_is_for_a_group_is_not_carried() {
        let mut read = super_packet(false, 10, 1400, 0);
        read[1] = 0;
        assert_eq!(Frame::parse(&read).unwrap().packets(), 1);
        read[VNET + 16] = 224;
        assert_eq!(Frame::parse(&read), Err(Refused::Multicast));
        let mut read = super_packet(true, 10, 1400, 0);
        read[VNET + 24] = 0xff;
        assert_eq!(Frame::parse(&read), Err(Refused::Multicast));
        assert_eq!(Frame::parse(&[0; 12]), Err(Refused::Malformed));
    }
}
