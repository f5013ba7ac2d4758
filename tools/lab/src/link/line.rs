//! The thread that carries one direction. It reads packets from one TUN device and applies the
//! model (`shape`) to each packet of the wire. It holds the packets in flight (`arena`) and writes
//! them to the other device when they are due: never early, but for what short links take off for
//! the emulator's own share (`keeping::Share`). Lateness is counted. Its memory does not grow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::arena::Arena;
use super::counters::{Tally, add};
use super::keeping::{Keeping, Share, Spinning};
use super::packet::{Frame, Headers, Refused, VNET};
use super::pulse::Pulse;
use super::shape::{Shaper, Verdict};
use super::spec::Direction;

/// The maximum length of one read: the header and the largest IP packet.
const MOST_READ: usize = VNET + 65_536;

/// Packets of one super-packet that are due within this time are written together when the last of
/// them is due. Each then costs the receiver as little as with a network card's receive offload,
/// and none is later than this by it.
const GATHER_NS: u64 = 50_000;

/// Threads of links with a delay up to this spin: a sleep ends tens of µs late, which is much of
/// such a round trip.
const SHORT: Duration = Duration::from_millis(1);
/// How long they spin before a due time, and after the link's last packet, ns.
const SPIN_NS: u64 = 60_000;
/// The number of processors from which on they may spin at any time: both ends and both lines have
/// one.
const PROCESSORS: usize = 4;
/// A wait of less than this found a packet that was there before, ns.
const NO_WAIT_NS: u64 = 5_000;

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
    pulse: Arc<Pulse>,
    /// Whether the link is [`SHORT`].
    short: bool,
    spinning: Spinning,
    keeping: Keeping,
    share: Share,
    /// When the plan of rates began.
    plan: Option<u64>,
    /// The last time at which no packet waited to be read.
    empty: u64,
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
        pulse: Arc<Pulse>,
    ) -> Self {
        let size = match direction.highest_rate() {
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
            pulse,
            short: direction.delay <= SHORT,
            spinning: Spinning::new(
                std::thread::available_parallelism().is_ok_and(|count| count.get() >= PROCESSORS),
            ),
            keeping: Keeping::default(),
            share: Share::new(0),
            plan: None,
            empty: 0,
            spill: vec![0; MOST_READ],
            headers: [0; _],
            cut: Vec::new(),
        }
    }

    /// Takes off a short delay what the emulator itself takes, of which `wake` ns for its thread to
    /// wake.
    pub(crate) fn take_off(&mut self, wake: u64) {
        self.share = Share::new(if self.short { wake } else { 0 });
    }

    fn now(&self) -> u64 {
        self.pulse.now()
    }

    /// Carries packets until the device it reads from is gone.
    pub(crate) fn run(mut self) {
        while self.turn().is_ok() {}
    }

    /// Writes what is due, waits for the next due time or for input, and reads.
    fn turn(&mut self) -> io::Result<()> {
        self.deliver();
        let now = self.now();
        let due = self.next_due();
        let left = due.map(|due| due.saturating_sub(now));
        let lead = if self.short { self.spinning.may(now, SPIN_NS) } else { 0 };
        let active = self.short && self.spinning.is_unbounded();
        let active = if active { self.pulse.last() + SPIN_NS } else { 0 };
        if let Some(due) = due.filter(|due| due.saturating_sub(now) <= lead) {
            return self.spin(now, due);
        }
        if now < active {
            return self.spin(now, active.min(due.map_or(u64::MAX, |due| due - lead)));
        }
        match self.wait(now, left.map(|left| left - lead)) {
            Ok(true) => self.take_some().map(|_| ()),
            Ok(false) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads until something came, or until `until`.
    fn spin(&mut self, began: u64, until: u64) -> io::Result<()> {
        while !self.take_some()? && self.now() < until {
            std::hint::spin_loop();
        }
        let spun = self.now().saturating_sub(began);
        self.spinning.spun(spun);
        Ok(())
    }

    /// Reads some of the packets that are there, if any.
    fn take_some(&mut self) -> io::Result<bool> {
        for at in 0..READS {
            if !self.take()? {
                return Ok(at > 0);
            }
        }
        Ok(true)
    }

    /// Waits for input, for at most `wait` ns from `now` on; returns whether there is input.
    fn wait(&mut self, now: u64, wait: Option<u64>) -> Result<bool, Errno> {
        let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
        let timeout = wait.map(|wait| Timespec {
            tv_sec: (wait / 1_000_000_000) as i64,
            tv_nsec: (wait % 1_000_000_000) as i64,
        });
        poll(&mut fds, timeout.as_ref())?;
        let events = fds[0].revents();
        let woke = self.pulse.now();
        if woke - now > NO_WAIT_NS {
            // What came meanwhile woke this thread, or came after it should have woken.
            self.empty = wait.map_or(woke, |wait| woke.min(now + wait));
            if events.contains(PollFlags::IN) {
                self.share.woken(now);
            }
        }
        if events.contains(PollFlags::ERR) && !events.contains(PollFlags::IN) {
            std::thread::sleep(DOWN);
        }
        Ok(events.contains(PollFlags::IN))
    }

    /// When the next piece is to be written.
    fn next_due(&self) -> Option<u64> {
        self.next_piece().map(|due| due.saturating_sub(self.share.ahead()))
    }

    /// The due time of the next piece.
    fn next_piece(&self) -> Option<u64> {
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
        while let Some(due) = self.next_piece() {
            if due > now + self.share.ahead() {
                now = self.now();
                if due > now + self.share.ahead() {
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
        let now = self.pulse.now();
        let written = match frame.row(read, piece.first, piece.count, &mut self.headers) {
            Some((headers, payload)) => {
                rustix::io::writev(&self.to, &[IoSlice::new(headers), IoSlice::new(payload)])
            }
            None => rustix::io::write(&self.to, read),
        };
        if piece.count == 1 {
            self.share.wrote(self.pulse.now() - now);
        }
        add(&self.tally.writes, 1);
        self.pulse.sent(now);
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
        let before = self.now();
        let (room, kept) = match self.arena.room(MOST_READ) {
            Some(room) => (room, true),
            None => (&mut self.spill[..], false),
        };
        let len = match rustix::io::read(&self.from, &mut *room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(Errno::AGAIN) => {
                self.empty = before;
                return Ok(false);
            }
            Err(Errno::INTR) => return Ok(false),
            Err(Errno::BADFD) => return Err(io::ErrorKind::NotConnected.into()),
            // The device is down and may come up again.
            Err(_) => {
                std::thread::sleep(DOWN);
                return Ok(false);
            }
        };
        let now = self.pulse.now();
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
        // No packet is larger than the first one.
        Tally::raise(&tally.largest, frame.packet_len(0) as u64);
        add(&tally.bytes_in, (0..packets).map(|at| frame.packet_len(at) as u64).sum());
        if !kept {
            add(&tally.overrun, packets.into());
            return Ok(true);
        }
        let plan = self.pulse.plans_began();
        if plan != self.plan {
            self.plan = plan;
            self.shaper.begin_plan(plan);
        }
        let (free, sent) = self.shaper.sending(now);
        if let Some(span) = self.keeping.read(now, sent, free, self.empty) {
            add(&tally.asked, span.asked);
            add(&tally.missed, span.missed);
        }
        let came = self.share.came(now);
        self.shape(came, &frame);
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

    /// Cuts the packet that came at `now` into the pieces that come out.
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
        Tally::raise(&tally.queue_high_water, self.shaper.backlog(now));
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
    use std::time::Instant;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::options::LinkOptions;
    use super::super::spec::Queue;
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
        let line = Line::new((from, to), &spec.a_to_b, shaper, packet, Arc::clone(&tally), Pulse::new());
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
    fn the_largest_ip_packet_is_carried_whole_and_told() {
        let bench = bench(LinkOptions { mtu: Some(65_535), ..LinkOptions::of("wan-0.2mi") });
        for number in 0..40 {
            bench.send(number, if number % 8 == 0 { 65_535 } else { 40 });
        }
        let out = bench.receive(Duration::from_millis(300));
        assert_eq!(out.iter().map(|(_, number)| *number).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        let counted = bench.tally.read(false);
        assert_eq!((counted.packets_out, counted.bytes_out), (40, 5 * 65_535 + 35 * 40));
        assert_eq!((counted.largest_packet_bytes, counted.dropped_overrun), (65_535, 0));
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
