//! Chooses and explains the settings of sockets, connections and login. [`super::writes`] handles
//! the round trips of writes.

use std::time::Duration;

use runtime::SystemLimits;

use super::writes::{COMMANDS, RDMA_READ, Writes};
use super::{Allowed, MOST_SESSIONS, Measured, Plan, Reason, SHORTEST_IO, spare};
use crate::tune::buffers::{receiving, sending};
use crate::tune::settings::{Settings, short};

/// Minimum round trip of a path on which congestion control matters.
const WIDE: Duration = Duration::from_millis(5);
/// Minimum share of lost segments that slows a connection, unless its congestion control tolerates
/// loss.
const LOSSY: f64 = 1e-5;
/// Bytes per segment. And the segments in flight of a connection that halves them at each loss,
/// times the root of the loss share (Mathis and others, 1997).
const SEGMENT: (f64, f64) = (1448.0, 1.22);
/// Maximum connections for the sockets' capacity, and for losses.
const MOST_LINKS: (u64, u64) = (64, 8);

/// The reasons and the advice so far.
#[derive(Debug, Default)]
pub(super) struct Telling {
    pub reasons: Vec<Reason>,
    pub advice: Vec<String>,
}

impl Telling {
    fn say(&mut self, what: &'static str, value: String, why: String) {
        self.reasons.push(Reason { what, value, why });
    }

    fn advise(&mut self, advice: String) {
        self.advice.push(advice);
    }

    /// Bytes to have in flight: for reads and unsolicited writes, and for longer writes.
    pub fn under_way(&mut self, writes: &Writes, holds: u64, allowed: &Allowed) -> (u64, u64) {
        let (flow, long) = (&writes.flow, writes.long());
        let under_way = flow.bytes(false, 1).max(SHORTEST_IO.into());
        let under_way_long = flow.bytes(true, long).max(under_way);
        let rate = flow.rate as f64 / 1e6;
        self.say(
            "bandwidth-delay product",
            size(holds),
            format!("{rate:.1} MB/s × {:.3} ms are on their way at once when the path is full", ms(flow.rtt)),
        );
        self.say(
            "under way",
            size(under_way),
            format!("twice {rate:.1} MB/s × {:.3} ms, what a lone command takes", ms(flow.wait)),
        );
        let why = match (flow.unasked, allowed.iser) {
            (0, _) => {
                "of no write: the target wants to send an R2T before (InitialR2T=Yes, ImmediateData=No)"
                    .into()
            }
            (_, false) => {
                format!(
                    "a write of so much at most takes one round trip, {:.3} ms, as a read does",
                    ms(flow.rtt)
                )
            }
            (_, true) => {
                "a write of so much at most goes with its command and takes one round trip".to_owned()
            }
        };
        self.say("unasked", size(flow.unasked.into()), why);
        let more = flow.turns(true, long) - 1;
        let asked = match (allowed.iser, more) {
            (true, 1) => "all of it is fetched, a round trip more".to_owned(),
            (false, 1) => "the rest is asked for, a round trip more".to_owned(),
            _ => format!("{} at a time are asked for, {more} round trips more", size(flow.asked)),
        };
        self.say(
            "under way, longer writes",
            size(under_way_long),
            match flow.twice(true, long) >= under_way_long {
                true => format!("{asked}: twice {rate:.1} MB/s × {:.3} ms", ms(flow.time(true, long))),
                false => format!(
                    "{asked}, for which they wait together: the pause is short beside what they bring"
                ),
            },
        );
        if flow.asked < holds && !allowed.iser {
            self.advise(format!(
                "the target asks for {} of a write at a time at most (MaxBurstLength, MaxOutstandingR2T), and the path holds {}: long \
                 writes need many commands; [limits] max-burst = {}, max-outstanding-r2t = {}",
                size(flow.asked),
                size(holds),
                writes.serving(holds).max_burst,
                writes.wanted_r2t
            ));
        }
        if allowed.initial_r2t && !allowed.iser {
            self.advise(format!(
                "the target forbids unsolicited data (InitialR2T=Yes): a write of more than {} costs a round trip more",
                size(flow.unasked.into())
            ));
        }
        (under_way, under_way_long)
    }

    /// Chooses buffers and connections. Returns the number of sessions.
    pub fn sockets(
        &mut self,
        settings: &mut Settings,
        measured: &Measured,
        writes: &Writes,
        holds: u64,
        (allowed, system): (&Allowed, &SystemLimits),
    ) -> u16 {
        let needs = spare(holds);
        let (send, recv) = (sending(system), receiving(system));
        settings.send_buffer = send.chosen(needs);
        settings.recv_buffer = recv.chosen(needs);
        for (what, buffer, chosen) in
            [("send buffer", &send, settings.send_buffer), ("receive buffer", &recv, settings.recv_buffer)]
        {
            let (auto, needed) = (size(buffer.auto), size(needs));
            let (value, why) = match chosen {
                Some(bytes) => (
                    size(bytes.into()),
                    format!("one that grows by itself keeps {auto} on their way, {needed} are needed"),
                ),
                None if buffer.auto >= needs => (
                    "the system's".to_owned(),
                    format!("it grows until {auto} are on their way, {needed} are needed"),
                ),
                None => (
                    "the system's".to_owned(),
                    format!("the system gives no larger one: {auto} of {needed} on their way"),
                ),
            };
            self.say(what, value, why);
        }
        let reach = send.reach(settings.send_buffer).min(recv.reach(settings.recv_buffer));
        let mut links = 1;
        if reach < needs {
            links = needs.div_ceil(reach.max(1)).clamp(1, MOST_LINKS.0);
            self.advise(format!(
                "at both ends: sysctl net.ipv4.tcp_rmem='4096 131072 {0}' net.ipv4.tcp_wmem='4096 16384 {0}'",
                needs.saturating_mul(2).checked_next_power_of_two().unwrap_or(needs)
            ));
        }
        let mut why = format!("one carries {} on their way", size(reach));
        let calm = system.congestion == "bbr" || (writes.flow.rtt >= WIDE && allows(system, "bbr"));
        if measured.loss > LOSSY && !calm {
            let keeps = SEGMENT.0 * SEGMENT.1 / measured.loss.sqrt();
            // The conversion saturates.
            let lossy = needs.div_ceil((keeps as u64).max(1)).clamp(1, MOST_LINKS.1);
            if lossy > links {
                links = lossy;
                why = format!(
                    "{:.4} % of the segments are lost: each by itself slows down to {} on their way",
                    measured.loss * 100.0,
                    size(keeps as u64)
                );
            }
        }
        let connections = links.min(allowed.connections.max(1).into());
        if links > connections {
            why += &format!("; {links} are needed, and the target allows a session {connections}");
        }
        settings.connections = u16::try_from(connections).ok();
        self.say("connections", connections.to_string(), why);
        u16::try_from(links.div_ceil(connections).min(MOST_SESSIONS)).unwrap_or(1)
    }

    /// Explains the length and number of commands.
    pub fn commands(&mut self, plan: &Plan) {
        let (io, commands) = (u64::from(plan.io), plan.flow.commands(true, plan.io.into()));
        let unasked = match io <= plan.unasked.into() {
            true => ", each no longer than goes unasked",
            false => "",
        };
        self.say("block size", size(io), format!("about {COMMANDS} commands for what is under way{unasked}"));
        let under_way = size(plan.flow.bytes(true, io));
        let mut why = format!("{under_way} / {}, and one more", size(io));
        if plan.sessions > 1 {
            why += &format!(", in {} sessions", plan.sessions);
        }
        if commands > u64::from(plan.window) * u64::from(plan.sessions) {
            why += &format!(
                ", are {commands}, and the target takes {} at a time (its queue-depth)",
                plan.window
            );
            self.advise(format!(
                "the target takes {} commands of a session; [limits] queue-depth = {} would do for blocks of 64 KiB",
                plan.window, plan.serving.queue_depth
            ));
        }
        self.say("depth", plan.depth.to_string(), why);
        if plan.sessions > 1 {
            self.say(
                "sessions",
                plan.sessions.to_string(),
                "what one session may have under way is not enough: multipath, or `stag bench --sessions`"
                    .to_owned(),
            );
        }
    }

    /// Chooses the congestion control.
    pub fn congestion(&mut self, settings: &mut Settings, rtt: Duration, system: &SystemLimits) {
        if rtt < WIDE || system.congestion == "bbr" {
            return;
        }
        if !allows(system, "bbr") {
            return self.advise(
                "at both ends: modprobe tcp_bbr; sysctl net.ipv4.tcp_congestion_control=bbr, which minds lost segments less"
                    .to_owned(),
            );
        }
        settings.congestion = Some("bbr".to_owned());
        let why = format!(
            "{} takes each lost segment for a full path, and {:.0} ms to find out",
            system.congestion,
            ms(rtt)
        );
        self.say("congestion control", "bbr".to_owned(), why);
        self.advise(
            "the target's end decides how reads are sent: [limits] congestion-control = \"bbr\" there, or sysctl \
             net.ipv4.tcp_congestion_control=bbr"
                .to_owned(),
        );
    }

    /// Chooses the negotiated parameters.
    pub fn negotiated(&mut self, settings: &mut Settings, writes: &Writes, allowed: &Allowed) {
        settings.max_burst = Some(writes.burst);
        if allowed.iser {
            self.over_iser(settings, writes, allowed)
        } else {
            self.over_tcp(settings, writes, allowed)
        }
    }

    fn over_iser(&mut self, settings: &mut Settings, writes: &Writes, allowed: &Allowed) {
        let reads = writes.reads.unwrap_or(16);
        settings.reads = Some(reads);
        settings.fpdu = Some(65_536);
        settings.unsolicited = writes.unsolicited;
        let four = 4.0 * f64::from(RDMA_READ) / writes.flow.rtt.as_secs_f64().max(1e-9) / 1e6;
        self.say(
            "RDMA Reads outstanding (ORD)",
            reads.min(allowed.reads.max(1)).to_string(),
            format!(
                "writes longer than {} are fetched by RDMA Read, {} at once at most; 4 at a time, as cards used to do, would leave at \
                 most {four:.1} MB/s",
                size(writes.flow.unasked.into()),
                size(RDMA_READ.into()),
            ),
        );
        if allowed.reads < reads {
            self.advise(format!(
                "the target wants no more than {} RDMA Reads at a time: [iser] reads = {reads}",
                allowed.reads
            ));
        }
        self.say(
            "FPDU size",
            size(65_536),
            "one header and CRC for as many bytes; the path cuts them into segments anyway".to_owned(),
        );
    }

    fn over_tcp(&mut self, settings: &mut Settings, writes: &Writes, allowed: &Allowed) {
        settings.first_burst = Some(writes.first_burst);
        settings.initial_r2t = Some(allowed.initial_r2t);
        settings.immediate_data = Some(allowed.immediate_data);
        settings.outstanding_r2t = Some(writes.outstanding_r2t);
        settings.recv_segment = Some(262_144);
        let yes = |yes: bool| if yes { "Yes" } else { "No" };
        self.say(
            "FirstBurstLength",
            size(writes.first_burst.into()),
            format!(
                "InitialR2T={}, ImmediateData={}: what goes unasked, as far as the target allows it",
                yes(allowed.initial_r2t),
                yes(allowed.immediate_data)
            ),
        );
        self.say(
            "MaxBurstLength",
            size(writes.burst.into()),
            "an R2T's sequence: a quarter of what the path holds, and a command's data at least".to_owned(),
        );
        self.say(
            "MaxOutstandingR2T",
            writes.outstanding_r2t.to_string(),
            "as many of a long write as the path holds, if the target asks for 256 KiB by each".to_owned(),
        );
        self.say(
            "MaxRecvDataSegmentLength",
            size(262_144),
            "48 bytes of header to 256 KiB of data are nothing".to_owned(),
        );
    }
}

fn allows(system: &SystemLimits, name: &str) -> bool {
    system.congestion_allowed.iter().any(|allowed| allowed == name)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A size for display: exact if it is a whole number of KiB, otherwise rounded.
fn size(bytes: u64) -> String {
    match u32::try_from(bytes) {
        Ok(exact) if exact % 1024 == 0 => match short(exact) {
            text if exact == 0 => text,
            text => text.replace('K', " KiB").replace('M', " MiB"),
        },
        _ if bytes < 1 << 20 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
