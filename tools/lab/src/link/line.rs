//! The thread that carries one direction. It reads packets from one TUN device and applies the
//! model (`shape`) to each packet of the wire. It holds the packets in flight (`arena`) and writes
//! them to the other device when they are due. Never early; lateness is counted. Its memory does
//! not grow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::arena::Arena;
use super::counters::{Tally, add};
use super::packet::{Frame, Headers, Refused, VNET};
use super::shape::{Shaper, Verdict};
use super::spec::Direction;

/// The maximum length of one read: the header and the largest IP packet.
const MOST_READ: usize = VNET + 65_536;

/// Packets of one super-packet that are due within this time are written together when the last of
/// them is due. Each then costs the receiver as little as with a network card's receive offload,
/// and none is later than this by it.
const GATHER_NS: u64 = 50_000;

/// The maximum number of consecutive reads before due packets are checked.
const READS: usize = 16;

/// Everything may come out this many ms late before memory runs out.
const LATE_MS: u64 = 60;

/// The wait before a device that is down is tried again.
const DOWN: Duration = Duration::from_millis(10);

/// Memory of a direction without a rate, whose bytes in flight are unbounded.
const WITHOUT_RATE: usize = 64 << 20;

/// Consecutive packets of one read, in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    /// When its last packet is due, and its first, ns.
    due: u64,
    first_due: u64,
    /// The read, and the range of its packets.
    read: u64,
    first: u32,
    count: u32,
}

pub(crate) struct Line<D> {
    from: D,
    to: D,
    shaper: Shaper,
    arena: Arena<Frame>,
    /// Pieces in order, by due time.
    way: VecDeque<Piece>,
    /// Pieces delayed for reordering.
    late: BinaryHeap<Reverse<Piece>>,
    tally: Arc<Tally>,
    start: Instant,
    /// The buffer of reads for which the arena has no room.
    spill: Vec<u8>,
    headers: Headers,
    /// The pieces of the current read.
    cut: Vec<(Piece, bool)>,
}

impl<D: AsFd> Line<D> {
    /// A line from one device to another. `packet` is the largest packet's size on the wire.
    pub(crate) fn new(
        (from, to): (D, D),
        direction: &Direction,
        shaper: Shaper,
        packet: u64,
        tally: Arc<Tally>,
    ) -> Self {
        let size = match direction.rate {
            // The margin covers three things: small packets cost more here than on the wire, the
            // ring skips bytes at its end, and late pieces stay longer.
            Some(rate) => {
                let late = usize::try_from(rate / 8 / 1000 * LATE_MS).unwrap_or(usize::MAX).min(WITHOUT_RATE);
                (direction.in_flight(packet) as usize / 4 * 5 + 4 * MOST_READ + late).max(1 << 20)
            }
            None => WITHOUT_RATE,
        };
        Self {
            from,
            to,
            shaper,
            arena: Arena::new(size),
            way: VecDeque::new(),
            late: BinaryHeap::new(),
            tally,
            start: Instant::now(),
            spill: vec![0; MOST_READ],
            headers: [0; _],
            cut: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Carries packets until the device it reads from is gone.
    pub(crate) fn run(mut self) {
        loop {
            self.deliver();
            let wait = self.next_due().map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
            let readable = match self.wait(wait) {
                Ok(readable) => readable,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            if readable {
                for _ in 0..READS {
                    match self.take() {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(_) => return,
                    }
                }
            }
        }
    }

    /// Waits for input, for at most `wait`; returns whether there is input.
    fn wait(&self, wait: Option<Duration>) -> Result<bool, Errno> {
        let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
        let timeout = wait
            .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
        poll(&mut fds, timeout.as_ref())?;
        let events = fds[0].revents();
        if events.contains(PollFlags::ERR) && !events.contains(PollFlags::IN) {
            std::thread::sleep(DOWN);
        }
        Ok(events.contains(PollFlags::IN))
    }

    /// The due time of the next piece.
    fn next_due(&self) -> Option<u64> {
        let late = self.late.peek().map(|Reverse(piece)| piece.due);
        let next = self.way.front().map(|piece| piece.due);
        match (next, late) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Writes all pieces that are due.
    fn deliver(&mut self) {
        let mut now = self.now();
        while let Some(due) = self.next_due() {
            if due > now {
                now = self.now();
                if due > now {
                    return;
                }
            }
            let late = self.late.peek().is_some_and(|Reverse(piece)| piece.due == due);
            let piece = if late { self.late.pop().map(|Reverse(piece)| piece) } else { self.way.pop_front() };
            if let Some(piece) = piece {
                self.hand_over(piece);
            }
        }
    }

    fn hand_over(&mut self, piece: Piece) {
        let Some((read, frame)) = self.arena.get(piece.read) else { return };
        // The time before the write: the write includes the receiving kernel's work, which is not
        // lateness.
        let now = self.start.elapsed().as_nanos() as u64;
        let written = match frame.row(read, piece.first, piece.count, &mut self.headers) {
            Some((headers, payload)) => {
                rustix::io::writev(&self.to, &[IoSlice::new(headers), IoSlice::new(payload)])
            }
            None => rustix::io::write(&self.to, read),
        };
        add(&self.tally.writes, 1);
        let count = u64::from(piece.count);
        if written.is_ok() {
            let bytes: usize = (piece.first..piece.first + piece.count).map(|at| frame.packet_len(at)).sum();
            add(&self.tally.packets_out, count);
            add(&self.tally.bytes_out, bytes as u64);
            let (last, spread) = (count.max(2) - 1, piece.due - piece.first_due);
            for at in 0..count {
                let due = piece.first_due + if count > 1 { spread * at / last } else { 0 };
                self.tally.late(now.saturating_sub(due));
            }
        } else {
            add(&self.tally.undeliverable, count);
        }
        self.arena.release(piece.read);
    }

    /// Reads one packet from the device; false if it has none.
    fn take(&mut self) -> io::Result<bool> {
        let (room, kept) = match self.arena.room(MOST_READ) {
            Some(room) => (room, true),
            None => (&mut self.spill[..], false),
        };
        let len = match rustix::io::read(&self.from, &mut *room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::BADFD) => return Err(io::ErrorKind::NotConnected.into()),
            // The device is down and may come up again.
            Err(_) => {
                std::thread::sleep(DOWN);
                return Ok(false);
            }
        };
        let now = self.start.elapsed().as_nanos() as u64;
        let tally = &self.tally;
        add(&tally.reads, 1);
        let frame = match Frame::parse(&room[..len]) {
            Ok(frame) => frame,
            Err(Refused::Multicast) => {
                add(&tally.multicast, 1);
                return Ok(true);
            }
            Err(Refused::Malformed) => {
                add(&tally.malformed, 1);
                return Ok(true);
            }
        };
        let packets = frame.packets();
        add(&tally.packets_in, packets.into());
        add(&tally.bytes_in, (0..packets).map(|at| frame.packet_len(at) as u64).sum());
        if !kept {
            add(&tally.overrun, packets.into());
            return Ok(true);
        }
        self.shape(now, &frame);
        if !self.cut.is_empty() {
            let number = self.arena.keep(MOST_READ, len, self.cut.len() as u32, frame);
            for (mut piece, late) in self.cut.drain(..) {
                piece.read = number;
                if late {
                    self.late.push(Reverse(piece));
                } else {
                    self.way.push_back(piece);
                }
            }
        }
        Ok(true)
    }

    /// Cuts the packet read at `now` into the pieces that come out.
    fn shape(&mut self, now: u64, frame: &Frame) {
        let (mut lost, mut full, mut late) = (0, 0, 0);
        // Whether the last piece of the list can be extended.
        let mut open = false;
        for at in 0..frame.packets() {
            match self.shaper.packet(now, frame.packet_len(at) as u64) {
                Verdict::Deliver(due) => {
                    match self.cut.last_mut() {
                        Some((piece, _)) if open && due - piece.first_due <= GATHER_NS => {
                            piece.due = due;
                            piece.count += 1;
                        }
                        _ => {
                            let piece = Piece { due, first_due: due, read: 0, first: at, count: 1 };
                            self.cut.push((piece, false));
                        }
                    }
                    open = true;
                    continue;
                }
                Verdict::DeliverLate(due) => {
                    late += 1;
                    self.cut.push((Piece { due, first_due: due, read: 0, first: at, count: 1 }, true));
                }
                Verdict::Lost => lost += 1,
                Verdict::QueueFull => full += 1,
            }
            open = false;
        }
        let tally = &self.tally;
        for (counter, n) in [(&tally.lost, lost), (&tally.queue_full, full), (&tally.reordered, late)] {
            if n > 0 {
                add(counter, n);
            }
        }
        tally.backlog(self.shaper.backlog(now));
    }

    /// Publishes the id of this thread, for its processor time.
    pub(crate) fn sign(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.tally.thread.store(thread as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::spec::{LinkOptions, Queue};
    use super::*;

    /// A line between two datagram sockets, which keep packet boundaries as a TUN device does: the
    /// input and the output.
    struct Bench {
        sender: OwnedFd,
        receiver: OwnedFd,
        tally: Arc<Tally>,
        started: Instant,
    }

    fn bench(options: LinkOptions) -> Bench {
        let spec = options.resolve().expect("the options make a link");
        let pair = || {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
                .expect("sockets can be made")
        };
        let ((sender, from), (to, receiver)) = (pair(), pair());
        for socket in [&sender, &to] {
            rustix::net::sockopt::set_socket_send_buffer_size(socket, 4 << 20).expect("a buffer may grow");
        }
        let tally = Arc::new(Tally::default());
        let shaper = Shaper::new(&spec.a_to_b, spec.overhead, spec.seed, 0);
        let packet = u64::from(spec.mtu + spec.overhead);
        let line = Line::new((from, to), &spec.a_to_b, shaper, packet, Arc::clone(&tally));
        let started = Instant::now();
        std::thread::spawn(move || line.run());
        Bench { sender, receiver, tally, started }
    }

    /// A UDP packet of `len` bytes that contains `number`.
    fn packet(number: u32, len: usize) -> Vec<u8> {
        let mut packet = vec![0; VNET + len];
        packet[VNET] = 0x45;
        packet[VNET + 16] = 10;
        packet[VNET + 24..VNET + 28].copy_from_slice(&number.to_be_bytes());
        packet
    }

    impl Bench {
        fn send(&self, number: u32, len: usize) {
            while rustix::io::write(&self.sender, &packet(number, len)) == Err(Errno::AGAIN) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }

        /// Receives until the output is quiet for `quiet`: arrival times and packet numbers.
        fn receive(&self, quiet: Duration) -> Vec<(Duration, u32)> {
            let mut out = Vec::new();
            let mut buffer = vec![0; MOST_READ];
            let timeout = Timespec { tv_sec: 0, tv_nsec: quiet.as_nanos() as i64 };
            loop {
                let mut fds = [PollFd::new(&self.receiver, PollFlags::IN)];
                if poll(&mut fds, Some(&timeout)).expect("a socket can be polled") == 0 {
                    return out;
                }
                while let Ok(len) = rustix::io::read(&self.receiver, &mut buffer[..]) {
                    assert!(len > VNET + 28, "{len} bytes");
                    let number = &buffer[VNET + 24..VNET + 28];
                    let number = u32::from_be_bytes(number.try_into().expect("four bytes"));
                    out.push((self.started.elapsed(), number));
                }
            }
        }
    }

    #[test]
    fn nothing_comes_out_before_its_time_and_all_of_it_in_order() {
        let bench = bench(LinkOptions {
            delay: Some("20ms".into()),
            jitter: Some("5ms".into()),
            rate: Some("100Mb/s".into()),
            ..LinkOptions::of("lan")
        });
        let sent = bench.started.elapsed();
        for number in 0..200 {
            bench.send(number, 1500);
        }
        let out = bench.receive(Duration::from_millis(300));
        assert_eq!(out.iter().map(|(_, number)| *number).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
        for (at, (time, _)) in out.iter().enumerate() {
            let on_the_line = Duration::from_nanos(123_040 * (at as u64 + 1));
            assert!(*time >= sent + Duration::from_millis(15) + on_the_line, "packet {at} after {time:?}");
        }
        let counted = bench.tally.read(false);
        assert_eq!((counted.packets_in, counted.packets_out, counted.bytes_out), (200, 200, 300_000));
        assert_eq!(counted.late_us.iter().map(|(_, count)| count).sum::<u64>(), 200);
    }

    #[test]
    fn the_queue_is_bounded_and_drops_the_latest() {
        let bench = bench(LinkOptions {
            rate: Some("1Mb/s".into()),
            queue: Some("20p".into()),
            ..LinkOptions::of("lan")
        });
        for number in 0..500 {
            bench.send(number, 500);
        }
        let out = bench.receive(Duration::from_millis(300));
        let counted = bench.tally.read(false);
        assert_eq!(counted.packets_in, 500);
        assert_eq!(counted.packets_out, out.len() as u64);
        assert_eq!(counted.dropped_queue + counted.packets_out, 500);
        assert!(out.len() >= 20 && counted.dropped_queue > 0, "{counted:?}");
        let queue = Queue::Packets(20).bytes(538);
        assert!(counted.queue_high_water_bytes <= queue, "{counted:?}");
        for (at, (_, number)) in out.iter().take(20).enumerate() {
            assert_eq!(at as u32, *number, "the first twenty found room");
        }
    }

    #[test]
    fn a_seed_loses_the_same_packets_again_and_counts_them() {
        let options = LinkOptions {
            loss: Some("5%".into()),
            rate: Some("unlimited".into()),
            seed: Some(99),
            ..LinkOptions::of("lan")
        };
        let run = || {
            let bench = bench(options.clone());
            for number in 0..2000 {
                bench.send(number, 300);
            }
            let out: Vec<u32> =
                bench.receive(Duration::from_millis(300)).into_iter().map(|(_, number)| number).collect();
            (out, bench.tally.read(false))
        };
        let (first, counted) = run();
        assert_eq!(counted.dropped_loss + first.len() as u64, 2000);
        assert!((60..140).contains(&counted.dropped_loss), "{} of 2000", counted.dropped_loss);
        assert_eq!(first, run().0);
    }

    #[test]
    fn what_is_reordered_comes_behind_what_was_sent_after_it() {
        let bench = bench(LinkOptions {
            reorder: Some("2%".into()),
            reorder_by: Some("50ms".into()),
            delay: Some("1ms".into()),
            ..LinkOptions::of("lan")
        });
        for number in 0..1000 {
            bench.send(number, 200);
        }
        let out: Vec<u32> =
            bench.receive(Duration::from_millis(300)).into_iter().map(|(_, number)| number).collect();
        let mut sorted = out.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>(), "each came once");
        let behind = out.windows(2).filter(|pair| pair[1] < pair[0]).count();
        let counted = bench.tally.read(false).reordered;
        assert!(counted > 0 && behind > 0, "{counted} {behind}");
    }
}
