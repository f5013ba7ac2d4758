//! The loop: sockets, clock and processor time around [`Session`]s.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use load::cpu::Sample;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::args::{Args, Pattern, Unit};
use crate::login::{self, Negotiated};
use crate::outbox::SLICES;
use crate::ready::{Ready, waiting};
use crate::report::{Report, Tally};
use crate::session::{Plan, Session};
use crate::wire::{self, BHS, FINAL, op};
use crate::{LoadError, socket};

/// Longest silence of a target that has commands.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

struct Link {
    stream: TcpStream,
    session: Session,
    /// Whether `ready` reports when it can be written.
    blocked: bool,
}

impl Link {
    /// Makes `ready` report when it can be written, while data waits to be sent on it.
    fn watch(&mut self, index: usize, ready: &Ready) -> Result<(), LoadError> {
        let blocked = !self.session.outbox.is_empty();
        if blocked != self.blocked {
            self.blocked = blocked;
            ready.watch(&self.stream, index as u64, blocked)?;
        }
        Ok(())
    }
}

/// Runs the load that `args` describe.
///
/// # Errors
/// See [`LoadError`]. I/Os that fail are counted in the report instead.
pub fn run(args: &Args) -> Result<Report, LoadError> {
    let unit = Unit::parse(args.url.as_deref().unwrap_or_default())?;
    if args.pattern.is_call() {
        return Err(LoadError::Usage("only NFS has calls without data".into()));
    }
    let mut links = Vec::new();
    for number in 0..args.connections {
        links.push(open(args, &unit, number)?);
    }
    Runner {
        ready: (links.len() > 1).then(|| Ready::of(links.iter().map(|link| &link.stream))).transpose()?,
        links,
        block: payload(args.block),
        buffer: vec![0; args.receive()],
        tally: Tally::default(),
        started: Instant::now(),
        spin: args.spin,
    }
    .measure(args)
}

/// Connects, logs in and brings the unit to the point where it accepts reads and writes.
fn open(args: &Args, unit: &Unit, number: u16) -> Result<Link, LoadError> {
    let mut stream = socket::connect(&unit.portal)?;
    let set = |result: std::io::Result<()>| result.map_err(|e| LoadError::Io("setting a socket option", e));
    set(stream.set_nodelay(true))?;
    set(stream.set_read_timeout(Some(PATIENCE)))?;
    set(stream.set_write_timeout(Some(PATIENCE)))?;
    let isid = std::process::id() << 8 | u32::from(number);
    let mut negotiated = login::login(&mut stream, &args.initiator, &unit.target, isid)?;
    let (blocks, lba_bytes) = capacity(&mut stream, &mut negotiated, unit.lun)?;
    if args.block % lba_bytes != 0 {
        return Err(LoadError::Usage(format!(
            "{} bytes are not a multiple of the unit's {lba_bytes}-byte blocks",
            args.block
        )));
    }
    let pattern = if args.fill { Pattern::Sw } else { args.pattern };
    let plan = Plan {
        block: args.block,
        depth: args.depth,
        random: pattern.random(),
        read_percent: pattern.read_percent(args.read_percent),
        lun: unit.lun,
        lba_bytes,
        slots: blocks / (args.block / lba_bytes) as u64,
    };
    if plan.slots == 0 {
        return Err(LoadError::Usage("the unit is smaller than one I/O".into()));
    }
    Ok(Link { stream, session: Session::new(plan, negotiated, number), blocked: false })
}

/// READ CAPACITY(16) (SBC-3 §5.16), again for each unit attention that a fresh nexus has pending:
/// blocks and their bytes.
fn capacity(
    stream: &mut TcpStream,
    negotiated: &mut Negotiated,
    lun: u16,
) -> Result<(u64, usize), LoadError> {
    let mut last = 0;
    for tag in 0..16 {
        let mut bhs = [0; BHS];
        bhs[0] = op::SCSI_COMMAND;
        bhs[1] = FINAL | 0x40 | 1;
        wire::set_lun(&mut bhs, lun);
        wire::put32(&mut bhs, 16, tag);
        wire::put32(&mut bhs, 20, 32);
        wire::put32(&mut bhs, 24, negotiated.cmd_sn);
        wire::put32(&mut bhs, 28, negotiated.exp_stat_sn);
        (bhs[32], bhs[33], bhs[45]) = (0x9e, 0x10, 32);
        stream.write_all(&bhs).map_err(|e| LoadError::Io("sending", e))?;
        negotiated.cmd_sn = negotiated.cmd_sn.wrapping_add(1);
        let mut data = Vec::new();
        loop {
            let (bhs, body) = login::receive(stream)?;
            let opcode = bhs[0] & 0x3f;
            if opcode == op::DATA_IN {
                data.extend_from_slice(&body);
            }
            if opcode == op::SCSI_RESPONSE || opcode == op::DATA_IN && bhs[1] & wire::STATUS != 0 {
                negotiated.exp_stat_sn = wire::get32(&bhs, 24).wrapping_add(1);
                negotiated.max_cmd_sn = wire::get32(&bhs, 32);
                last = bhs[3];
                break;
            }
        }
        if last == 0 && data.len() >= 12 {
            let block = wire::get32(&data, 8) as usize;
            let top = u64::from(wire::get32(&data, 0)) << 32 | u64::from(wire::get32(&data, 4));
            if !(512..=1 << 20).contains(&block) || !block.is_power_of_two() || top == u64::MAX {
                return Err(LoadError::Protocol(format!(
                    "READ CAPACITY(16) tells of blocks of {block} bytes"
                )));
            }
            return Ok((top + 1, block));
        }
    }
    Err(LoadError::Protocol(format!("READ CAPACITY(16) ends with status {last:#04x}")))
}

/// Bytes that neither compress nor repeat from block to block.
pub(crate) fn payload(len: usize) -> Vec<u8> {
    let mut state = 0x853c_49e6_748f_ea9b_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

struct Runner {
    /// Only for several connections; a single one needs none.
    ready: Option<Ready>,
    links: Vec<Link>,
    block: Vec<u8>,
    buffer: Vec<u8>,
    tally: Tally,
    started: Instant,
    spin: bool,
}

impl Runner {
    fn measure(mut self, args: &Args) -> Result<Report, LoadError> {
        let now = Instant::now();
        for index in 0..self.links.len() {
            self.links[index].session.issue(now);
            self.flush(index)?;
            if let Some(ready) = &self.ready {
                self.links[index].watch(index, ready)?;
            }
        }
        let warmup = if args.fill { 0.0 } else { args.warmup.clamp(0.0, 3600.0) };
        self.drive_until(Duration::from_secs_f64(warmup), |_, _| false)?;

        self.tally = Tally::default();
        let start = Sample::take(args.target_pid);
        if args.fill {
            self.drive_until(Duration::MAX, |links, tally| tally.ios >= links[0].session.slots())?;
        } else {
            let seconds = Duration::from_secs_f64(args.seconds.clamp(0.001, 86400.0));
            self.drive_until(self.started.elapsed() + seconds, |_, _| false)?;
        }
        let report = Report::new(args, std::mem::take(&mut self.tally), &start)?;
        self.finish();
        Ok(report)
    }

    /// Waits for the commands in flight and logs out; a target that has gone away meanwhile is no
    /// error of the run.
    fn finish(&mut self) {
        for link in &mut self.links {
            link.session.stop();
        }
        let limit = self.started.elapsed() + Duration::from_secs(5);
        let mut drained = self.drive_until(limit, |links, _| links.iter().all(|link| link.session.idle()));
        // One after the other: a connection that was closed must not be received from again.
        while let (Ok(()), Some(mut link)) = (&drained, self.links.pop()) {
            link.session.logout();
            let others = std::mem::replace(&mut self.links, vec![link]);
            drained = self
                .flush(0)
                .and_then(|()| self.drive_until(limit, |links, _| links[0].session.logged_out()));
            self.links = others;
        }
    }

    /// Runs until `limit` after the start, or until `done`.
    fn drive_until(
        &mut self,
        limit: Duration,
        done: impl Fn(&[Link], &Tally) -> bool,
    ) -> Result<(), LoadError> {
        while self.started.elapsed() < limit && !done(&self.links, &self.tally) {
            // One connection with nothing left to send sleeps in its receive: no call is spent on
            // asking first.
            if self.links.len() == 1 && !self.spin && self.links[0].session.outbox.is_empty() {
                self.receive(0, RecvFlags::empty())?;
                continue;
            }
            if self.links.len() == 1 {
                if !self.spin {
                    self.sleep()?;
                }
                self.serve(0)?;
            } else {
                self.serve_ready()?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) -> Result<(), LoadError> {
        if !self.links[index].session.outbox.is_empty() {
            self.flush(index)?;
        }
        self.receive(index, RecvFlags::DONTWAIT)
    }

    /// Sleeps until some of the connections have something, and serves those.
    fn serve_ready(&mut self) -> Result<(), LoadError> {
        let Some(mut ready) = self.ready.take() else { return Ok(()) };
        self.tally.calls += 1;
        ready.wait(Some(if self.spin { Duration::ZERO } else { PATIENCE }))?;
        if ready.numbers().len() == 0 && !self.spin {
            return Err(stalled());
        }
        for index in ready.numbers() {
            self.serve(index)?;
            self.links[index].watch(index, &ready)?;
        }
        self.ready = Some(ready);
        Ok(())
    }

    /// Sleeps until the only connection can be read, or written if something waits to be sent on
    /// it.
    fn sleep(&mut self) -> Result<(), LoadError> {
        let link = &self.links[0];
        let wanted =
            if link.session.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        self.tally.calls += 1;
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&link.stream, wanted)], Some(&patience)) {
            Ok(0) => Err(stalled()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(waiting(errno)),
        }
    }

    fn receive(&mut self, index: usize, flags: RecvFlags) -> Result<(), LoadError> {
        self.tally.calls += 1;
        let stream = &self.links[index].stream;
        let got = match rustix::net::recv(stream, &mut self.buffer[..], flags) {
            Ok((0, _)) => return Err(LoadError::Protocol("the target closed the connection".into())),
            Ok((got, _)) => got,
            Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Ok(()),
            Err(Errno::AGAIN) => return Err(stalled()),
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(LoadError::Io("receiving", errno.into())),
        };
        let now = Instant::now();
        self.links[index].session.absorb(&self.buffer[..got], now, &mut self.tally)?;
        self.flush(index)
    }

    /// Sends as much as the socket takes.
    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let Link { stream, session, .. } = &mut self.links[index];
        while !session.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = session.outbox.slices(&self.block, &mut slices);
            self.tally.calls += 1;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&*stream, &slices[..count], &mut SendAncillaryBuffer::default(), flags)
            {
                Ok(sent) => session.outbox.consume(sent),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(LoadError::Io("sending", errno.into())),
            }
        }
        Ok(())
    }
}

fn stalled() -> LoadError {
    LoadError::Protocol(format!("the target said nothing for {} seconds", PATIENCE.as_secs()))
}
