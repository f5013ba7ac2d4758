//! The rtnetlink requests (rtnetlink(7)) that make and configure a link's devices, in the network
//! namespace of the calling thread. Owns no device; changes only devices named by its caller.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Skips duplicate address detection: the link has two ends only.
const IFA_F_NODAD: u8 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTAX_LOCK: u16 = 1;
const RTAX_CC_ALGO: u16 = 16;
/// The main table, a route of the administrator's, to hosts of the device's own net, to one host.
const MAIN_STATIC_LINK_UNICAST: [u8; 4] = [254, 4, 253, 1];

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
const TC_H_ROOT: u32 = 0xffff_ffff;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// A request under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        Self(bytes)
    }

    /// A `struct ifinfomsg`.
    fn link(&mut self, index: u32, up: bool) {
        let flags = if up { IFF_UP } else { 0 };
        self.0.extend_from_slice(&[0; 4]);
        for field in [index, flags, flags] {
            self.0.extend_from_slice(&field.to_ne_bytes());
        }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let len = (value.len() + 4) as u16;
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Nested attributes, after `head`.
    fn nest(&mut self, kind: u16, head: &[u8], inside: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(head);
        inside(self);
        let len = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[at + 2..at + 4].copy_from_slice(&kind.to_ne_bytes());
    }
}

/// The attributes in a part of an answer.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// An address's family and bytes.
fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AddressFamily::INET.as_raw() as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6.as_raw() as u8, address.octets().to_vec()),
    }
}

/// A socket to the kernel, for the network namespace in which it was opened.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        // The protocol is NETLINK_ROUTE, which is 0.
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?))
    }

    fn send(&self, mut message: Message) -> io::Result<()> {
        let len = message.0.len() as u32;
        message.0[..4].copy_from_slice(&len.to_ne_bytes());
        sendto(&self.0, &message.0, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Passes each message of the answer to `see` until the kernel ends the answer.
    fn answer(&self, mut see: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut buffer = vec![0; 32 << 10];
        loop {
            let (len, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..len];
            while let Some(header) = rest.get(..16) {
                let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
                let kind = u16::from_ne_bytes([header[4], header[5]]);
                let Some(body) = rest.get(16..len) else { break };
                match kind {
                    NLMSG_ERROR => {
                        let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                        return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                    }
                    NLMSG_DONE => return Ok(()),
                    _ => see(kind, body),
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    fn ask(&self, message: Message) -> io::Result<()> {
        self.send(message)?;
        self.answer(|_, _| {})
    }

    fn index(&self, device: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.0, device)?)
    }

    /// Sets a device up, with an MTU and a queue length if given.
    pub(crate) fn up(&self, device: &str, mtu: Option<u32>, queue: Option<u32>) -> io::Result<()> {
        let index = self.index(device)?;
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK);
        message.link(index, true);
        for (kind, value) in [(IFLA_MTU, mtu), (IFLA_TXQLEN, queue)] {
            if let Some(value) = value {
                message.number(kind, value);
            }
        }
        self.ask(message)
    }

    /// Gives a device an address.
    pub(crate) fn address(&self, device: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        let index = self.index(device)?;
        let (family, bytes) = octets(address);
        let mut message = Message::new(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        // A struct ifaddrmsg.
        message.0.extend_from_slice(&[family, prefix, IFA_F_NODAD, 0]);
        message.0.extend_from_slice(&index.to_ne_bytes());
        message.attribute(IFA_LOCAL, &bytes);
        message.attribute(IFA_ADDRESS, &bytes);
        self.ask(message)
    }

    /// Makes a route to one host, whose connections have this congestion control and no other. (The
    /// setting net.ipv4.tcp_congestion_control of a namespace takes only names that any user may
    /// choose.)
    pub(crate) fn pin_congestion(&self, device: &str, host: IpAddr, name: &str) -> io::Result<()> {
        let index = self.index(device)?;
        let (family, bytes) = octets(host);
        let mut message = Message::new(RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        // A struct rtmsg.
        message.0.extend_from_slice(&[family, bytes.len() as u8 * 8, 0, 0]);
        message.0.extend_from_slice(&MAIN_STATIC_LINK_UNICAST);
        message.0.extend_from_slice(&[0; 4]);
        message.attribute(RTA_DST, &bytes);
        message.number(RTA_OIF, index);
        message.nest(RTA_METRICS, &[], |message| {
            message.number(RTAX_LOCK, 1 << RTAX_CC_ALGO);
            message.text(RTAX_CC_ALGO, name);
        });
        self.ask(message)
    }

    /// Makes a veth pair of one name, one device here and one in the namespace `there`. GSO is
    /// limited to one segment.
    pub(crate) fn veth(&self, device: &str, there: BorrowedFd<'_>) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        message.link(0, false);
        message.text(IFLA_IFNAME, device);
        message.number(IFLA_GSO_MAX_SEGS, 1);
        message.nest(IFLA_LINKINFO, &[], |message| {
            message.text(IFLA_INFO_KIND, "veth");
            message.nest(IFLA_INFO_DATA, &[], |message| {
                message.nest(VETH_INFO_PEER, &[0; 16], |message| {
                    message.text(IFLA_IFNAME, device);
                    message.number(IFLA_GSO_MAX_SEGS, 1);
                    message.number(IFLA_NET_NS_FD, there.as_raw_fd() as u32);
                });
            });
        });
        self.ask(message)
    }

    /// Removes a device together with its peer.
    pub(crate) fn remove(&self, device: &str) -> io::Result<()> {
        let mut message = Message::new(RTM_DELLINK, NLM_F_ACK);
        message.link(self.index(device)?, false);
        self.ask(message)
    }

    /// Attaches a queueing discipline to a device's root. `head` and `options` depend on its kind:
    /// a structure, then attributes.
    pub(crate) fn discipline(
        &self,
        device: &str,
        kind: &str,
        head: &[u8],
        options: &[(u16, Vec<u8>)],
    ) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL);
        message.discipline(self.index(device)?);
        message.text(TCA_KIND, kind);
        message.nest(TCA_OPTIONS, head, |message| {
            for (kind, value) in options {
                message.attribute(*kind, value);
            }
        });
        self.ask(message)
    }

    /// All packets that a device's discipline dropped.
    pub(crate) fn discipline_drops(&self, device: &str) -> io::Result<u64> {
        let index = self.index(device)?;
        let mut message = Message::new(RTM_GETQDISC, NLM_F_DUMP);
        message.discipline(index);
        self.send(message)?;
        let mut drops = 0;
        self.answer(|kind, body| {
            let of_it = body.get(4..8) == Some(&index.to_ne_bytes()[..]);
            if kind != RTM_NEWQDISC || !of_it {
                return;
            }
            let stats = attributes(body.get(20..).unwrap_or_default()).find(|(kind, _)| *kind == TCA_STATS2);
            let queue = stats.and_then(|(_, stats)| attributes(stats).find(|(k, _)| *k == TCA_STATS_QUEUE));
            // A struct gnet_stats_queue: qlen, backlog, drops.
            if let Some(count) = queue.and_then(|(_, queue)| queue.get(8..12)?.try_into().ok()) {
                drops += u64::from(u32::from_ne_bytes(count));
            }
        })?;
        Ok(drops)
    }
}

impl Message {
    /// A `struct tcmsg` for a device's root.
    fn discipline(&mut self, index: u32) {
        self.0.extend_from_slice(&[0; 4]);
        for field in [index, 0, TC_H_ROOT, 0] {
            self.0.extend_from_slice(&field.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written_and_cut_ones_end_the_list() {
        let mut message = Message(Vec::new());
        message.text(3, "link0");
        message.nest(2, &[9; 4], |message| message.number(7, 5));
        let bytes = message.0;
        let seen: Vec<(u16, &[u8])> = attributes(&bytes).collect();
        assert_eq!(seen[0], (3, &b"link0\0"[..]));
        assert_eq!(attributes(&seen[1].1[4..]).collect::<Vec<_>>(), [(7, &5u32.to_ne_bytes()[..])]);
        for end in 0..bytes.len() {
            assert!(attributes(&bytes[..end]).count() < 2);
        }
        assert_eq!(attributes(&[0; 8]).count(), 0);
    }
}
