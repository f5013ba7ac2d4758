//! From what was measured of a path to how a session is to use it: arithmetic on bandwidth and delay, and nothing else.
//!
//! A path holds rate × round trip bytes (the bandwidth-delay product). With less under way it stands idle; what is above it waits in
//! queues. So twice of it is asked for: one that travels, and one so that neither end waits for the other. A write whose data the
//! target has to ask for (R2T, RDMA Read) travels twice, and needs twice as many commands for the same rate.

use std::time::Duration;

use ring::SystemLimits;

use super::settings::{Settings, short};

/// Round trips that were measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest.
    pub least: Duration,
    /// Half of them were no longer.
    pub p50: Duration,
    /// Nine of ten were no longer.
    pub p90: Duration,
    /// The longest.
    pub most: Duration,
}

impl RoundTrips {
    /// Of these, which are sorted by this. `None` of none.
    pub fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied();
        Some(Self { least: *times.first()?, p50: at(50)?, p90: at(90)?, most: *times.last()? })
    }
}

/// What was found out about a path and the unit behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Of pings (NOP-Out).
    pub rtt: RoundTrips,
    /// A lone command of 64 KiB: the round trip, its data's time on the path, and the unit's.
    pub alone: Duration,
    /// Reads with plenty under way, bytes a second.
    pub read: f64,
    /// Writes, if they were tried, bytes a second.
    pub write: Option<f64>,
    /// Of the segments that this side sent, the share that it sent again, 0 to 1.
    pub loss: f64,
}

/// What the target agrees to when it is offered everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// It is reached by iSER.
    pub iser: bool,
    /// MaxConnections.
    pub connections: u16,
    /// MaxBurstLength, bytes.
    pub max_burst: u32,
    /// FirstBurstLength, bytes.
    pub first_burst: u32,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxOutstandingR2T.
    pub outstanding_r2t: u16,
    /// The longest data segment that it takes, bytes (MaxRecvDataSegmentLength, over iSER TargetRecvDataSegmentLength).
    pub segment: u32,
    /// Commands of a session that it takes at a time.
    pub window: u32,
    /// The longest command of its unit, bytes.
    pub max_transfer: u32,
    /// iSER: RDMA Reads that it wants to have outstanding.
    pub reads: u16,
}

/// One choice and what it follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// What was chosen.
    pub what: &'static str,
    /// How.
    pub value: String,
    /// Why.
    pub why: String,
}

/// What the target's side should allow: the `[limits]` of a Stag that serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serving {
    /// `queue-depth`.
    pub queue_depth: u32,
    /// `max-burst`, bytes.
    pub max_burst: u32,
    /// `first-burst`, bytes.
    pub first_burst: u32,
    /// `max-outstanding-r2t`.
    pub outstanding_r2t: u16,
    /// `send-high-water`, bytes.
    pub send_high_water: u32,
}

/// How to use a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The session's.
    pub settings: Settings,
    /// Sessions side by side; 1 but where one is not enough and may have no more connections.
    pub sessions: u16,
    /// Bytes of a command.
    pub io: u32,
    /// Commands of each session under way.
    pub depth: u16,
    /// Bytes that the path holds.
    pub holds: u64,
    /// Bytes to have under way.
    pub under_way: u64,
    /// What was chosen and why, in the order to be told.
    pub reasons: Vec<Reason>,
    /// What only the systems at both ends, or the target's configuration, can give.
    pub advice: Vec<String>,
    /// What the target's side should allow.
    pub serving: Serving,
}

/// Below this a command has more header and turnaround than data, bytes.
const SHORTEST_IO: u32 = 64 << 10;
/// Longer commands gain nothing and cost whoever waits behind them, bytes.
const LONGEST_IO: u32 = 1 << 20;
/// Commands under way that are aimed at: few enough to be no burden, many enough that the end of one is no event.
const COMMANDS: u64 = 32;
/// Round trips from which on a path is wide enough that congestion control decides.
const WIDE: Duration = Duration::from_millis(5);
/// A share of lost segments from which on a connection by itself is slow, unless its congestion control does not mind.
const LOSSY: f64 = 1e-5;
/// A rate beyond which nothing is believed, bytes a second.
const FASTEST: f64 = 1e12;
/// A time beyond which nothing is believed.
const LONGEST: Duration = Duration::from_secs(60);
/// Sessions side by side at most.
const MOST_SESSIONS: u64 = 8;
/// The longest RDMA Read of Stag's target, bytes: longer writes are fetched in several.
const RDMA_READ: u32 = 512 << 10;

/// How to use the path.
pub fn plan(measured: &Measured, allowed: &Allowed, system: &SystemLimits) -> Plan {
    let rate = measured.read.max(measured.write.unwrap_or(0.0)).clamp(1.0, FASTEST);
    let rtt = measured.rtt.p50.min(LONGEST);
    let holds = (rate * rtt.as_secs_f64()).ceil() as u64;
    let wait = rtt.max(measured.alone.min(LONGEST));
    let unasked = !allowed.iser && !allowed.initial_r2t && allowed.first_burst >= SHORTEST_IO;
    let turns = if unasked { 1 } else { 2 };
    let under_way = ((rate * wait.as_secs_f64()).ceil() as u64 * 2).max(u64::from(SHORTEST_IO)) * turns;
    let mut reasons = Vec::new();
    let mut say = |what, value: String, why: String| reasons.push(Reason { what, value, why });
    say(
        "bandwidth-delay product",
        size(holds),
        format!("{:.1} MB/s × {:.3} ms are on their way at once when the path is full", rate / 1e6, ms(rtt)),
    );
    say(
        "under way",
        size(under_way),
        match turns {
            1 => format!("twice {:.1} MB/s × {:.3} ms, what a lone command takes", rate / 1e6, ms(wait)),
            _ => format!(
                "twice {:.1} MB/s × {:.3} ms, and that twice: a write's data is asked for first, a round trip more",
                rate / 1e6,
                ms(wait)
            ),
        },
    );

    // Commands.
    let longest = LONGEST_IO.min(floor_power_of_two(allowed.max_transfer));
    let aimed = ceil_power_of_two(under_way.div_ceil(COMMANDS)).clamp(SHORTEST_IO, LONGEST_IO);
    let mut io = aimed.min(longest);
    if unasked && io > allowed.first_burst {
        io = floor_power_of_two(allowed.first_burst);
    }
    let window = allowed.window.max(1);
    while u64::from(io) * u64::from(window) < under_way && io < longest {
        io *= 2;
    }
    let wanted = under_way.div_ceil(io.into()).max(4);
    let depth = wanted.min(window.into());
    let per_session = depth * u64::from(io);
    say(
        "block size",
        size(io.into()),
        format!(
            "about {COMMANDS} commands for what is under way{}",
            match unasked && io <= allowed.first_burst {
                true => ", each no longer than goes unasked",
                false => "",
            }
        ),
    );
    let mut sessions = 1;
    if wanted > u64::from(window) {
        sessions = under_way.div_ceil(per_session).min(MOST_SESSIONS);
        say(
            "depth",
            depth.to_string(),
            format!(
                "{} / {} are {wanted}, and the target takes {window} at a time (its queue-depth)",
                size(under_way),
                size(io.into())
            ),
        );
    } else {
        say("depth", depth.to_string(), format!("{} / {}", size(under_way), size(io.into())));
    }

    // Sockets.
    let needs = holds + holds / 4;
    let mut settings = Settings::default();
    let mut advice = Vec::new();
    let (send, recv) = (sending(system), receiving(system));
    let send_buffer = send.chosen(needs);
    let recv_buffer = recv.chosen(needs);
    settings.send_buffer = send_buffer;
    settings.recv_buffer = recv_buffer;
    for (what, buffer, chosen) in
        [("send buffer", &send, send_buffer), ("receive buffer", &recv, recv_buffer)]
    {
        let (value, why) = match chosen {
            Some(bytes) => (
                size(bytes.into()),
                format!(
                    "one that grows by itself keeps {} on their way, {} are needed",
                    size(buffer.auto),
                    size(needs)
                ),
            ),
            None if buffer.auto >= needs => (
                "the system's".to_owned(),
                format!("it grows until {} are on their way, {} are needed", size(buffer.auto), size(needs)),
            ),
            None => (
                "the system's".to_owned(),
                format!(
                    "the system gives no larger one: {} of {} on their way",
                    size(buffer.auto),
                    size(needs)
                ),
            ),
        };
        say(what, value, why);
    }
    let reach = send.reach(send_buffer).min(recv.reach(recv_buffer));
    let mut links = 1;
    if reach < needs {
        links = needs.div_ceil(reach.max(1)).clamp(1, 64);
        advice.push(format!(
            "at both ends: sysctl net.ipv4.tcp_rmem='4096 131072 {0}' net.ipv4.tcp_wmem='4096 16384 {0}'",
            (2 * needs).next_power_of_two()
        ));
    }
    let mut why = format!("one carries {} on their way", size(reach));
    let calm = system.congestion == "bbr" || (rtt >= WIDE && allows(system, "bbr"));
    if measured.loss > LOSSY && !calm && links < 4 {
        links = 4;
        why = format!(
            "{:.4} % of the segments are lost: each connection slows down by itself",
            measured.loss * 100.0
        );
    }
    let connections = links.min(allowed.connections.max(1).into());
    if allowed.iser || connections < links {
        sessions = sessions.max(links.div_ceil(connections)).min(MOST_SESSIONS);
    }
    if links > connections {
        why += &format!("; {links} are needed, and the target allows a session {connections}");
    }
    settings.connections = u16::try_from(connections).ok();
    say("connections", connections.to_string(), why);
    if sessions > 1 {
        say(
            "sessions",
            sessions.to_string(),
            "what one session may have under way is not enough: multipath, or `stag bench --sessions`"
                .to_owned(),
        );
    }

    // Congestion control.
    if rtt >= WIDE && system.congestion != "bbr" {
        if allows(system, "bbr") {
            settings.congestion = Some("bbr".to_owned());
            say(
                "congestion control",
                "bbr".to_owned(),
                format!(
                    "{} takes each lost segment for a full path, and {:.0} ms to find out",
                    system.congestion,
                    ms(rtt)
                ),
            );
            advice.push(
                "the target's end decides how reads are sent: [limits] congestion-control = \"bbr\" there, or sysctl \
                 net.ipv4.tcp_congestion_control=bbr"
                    .to_owned(),
            );
        } else {
            advice.push(
                "at both ends: modprobe tcp_bbr; sysctl net.ipv4.tcp_congestion_control=bbr, which minds lost segments less"
                    .to_owned(),
            );
        }
    }

    // What login negotiates.
    let burst = ceil_power_of_two((holds / 4).max(io.into()));
    let burst = burst.clamp(256 << 10, 8 << 20);
    let burst = burst.min(allowed.max_burst).max(512);
    settings.max_burst = Some(burst);
    let r2ts = u64::from(LONGEST_IO).max(holds).div_ceil(burst.into()) + 1;
    if allowed.iser {
        let reads = under_way.div_ceil(io.min(RDMA_READ).into()).next_power_of_two().clamp(16, 128);
        let reads = u16::try_from(reads).unwrap_or(128);
        settings.reads = Some(reads);
        say(
            "RDMA Reads outstanding (ORD)",
            reads.min(allowed.reads.max(1)).to_string(),
            format!(
                "a write's data is fetched by RDMA Read: {} / {}; 4 at a time, as cards used to do, would leave at most {:.1} MB/s",
                size(under_way),
                size(io.min(RDMA_READ).into()),
                4.0 * f64::from(io.min(RDMA_READ)) / wait.as_secs_f64().max(1e-9) / 1e6
            ),
        );
        if allowed.reads < reads {
            advice.push(format!(
                "the target wants no more than {} RDMA Reads at a time: [iser] reads = {reads}",
                allowed.reads
            ));
        }
        settings.fpdu = Some(65_536);
        say(
            "FPDU size",
            size(65_536),
            "one header and CRC for as many bytes; the path cuts them into segments anyway".to_owned(),
        );
        if rtt >= super::governor::FAR {
            settings.unsolicited = Some(allowed.segment.min(allowed.first_burst).max(8192));
        }
    } else {
        let first = allowed.first_burst.min(burst).min(io.max(256 << 10)).max(512);
        settings.first_burst = Some(first);
        settings.initial_r2t = Some(allowed.initial_r2t);
        settings.immediate_data = Some(allowed.immediate_data);
        settings.outstanding_r2t =
            u16::try_from(r2ts.clamp(2, 64)).ok().map(|n| n.min(allowed.outstanding_r2t.max(1)));
        settings.recv_segment = Some(262_144);
        say(
            "FirstBurstLength",
            size(first.into()),
            match unasked {
                true => format!(
                    "InitialR2T=No, ImmediateData={}: a write up to it takes one round trip, {:.3} ms, and not two",
                    if allowed.immediate_data { "Yes" } else { "No" },
                    ms(rtt)
                ),
                false => "the target wants its R2T first (InitialR2T=Yes): a write takes two round trips"
                    .to_owned(),
            },
        );
        say(
            "MaxBurstLength",
            size(burst.into()),
            "an R2T's sequence: a quarter of what the path holds, and a command's data at least".to_owned(),
        );
        say(
            "MaxOutstandingR2T",
            settings.outstanding_r2t.unwrap_or(1).to_string(),
            "as many sequences of a long write as the path holds, and one".to_owned(),
        );
        say(
            "MaxRecvDataSegmentLength",
            size(262_144),
            "48 bytes of header to 256 KiB of data are nothing".to_owned(),
        );
    }
    if depth > 128 {
        settings.queue_depth = u16::try_from(depth).ok();
    }
    if allowed.initial_r2t && !allowed.iser {
        advice.push(
            "the target forbids unsolicited data (InitialR2T=Yes): a write costs a round trip more"
                .to_owned(),
        );
    }
    let serving = Serving {
        queue_depth: u32::try_from(under_way.div_ceil(SHORTEST_IO.into())).unwrap_or(1024).clamp(128, 1024),
        max_burst: burst.max(1 << 20),
        first_burst: (256 << 10).max(io.min(burst)),
        outstanding_r2t: u16::try_from(r2ts.clamp(8, 64)).unwrap_or(8),
        send_high_water: u32::try_from(holds.next_power_of_two().clamp(4 << 20, 64 << 20)).unwrap_or(4 << 20),
    };
    if wanted > u64::from(window) {
        advice.push(format!(
            "the target takes {window} commands of a session; [limits] queue-depth = {} would do for blocks of 64 KiB",
            serving.queue_depth
        ));
    }
    let sessions = u16::try_from(sessions).unwrap_or(1);
    let depth = u16::try_from(depth).unwrap_or(u16::MAX);
    Plan { settings, sessions, io, depth, holds, under_way, reasons, advice, serving }
}

/// What a connection's buffer of one direction lets be on its way, bytes. What the other end's system does is not known here.
struct Buffer {
    /// If it grows by itself.
    auto: u64,
    /// The largest that may be asked for.
    most: u64,
    /// For each byte that is asked for, in tenths: the kernel doubles what it is given.
    tenths: u64,
}

impl Buffer {
    /// What to ask for so that `needs` are on their way; nothing where what grows by itself is as good.
    fn chosen(&self, needs: u64) -> Option<u32> {
        let wanted = (needs * 10).div_ceil(self.tenths).next_multiple_of(64 << 10).min(self.most);
        if self.auto >= needs || wanted * self.tenths / 10 <= self.auto {
            return None;
        }
        u32::try_from(wanted).ok().filter(|bytes| (4096..=1 << 30).contains(bytes))
    }

    fn reach(&self, chosen: Option<u32>) -> u64 {
        chosen.map_or(self.auto, |bytes| u64::from(bytes) * self.tenths / 10).max(64 << 10)
    }
}

/// A sender that found its buffer full goes on when a third of it is empty (sk_stream_is_writeable): two thirds are what it can count
/// on. More of it is worse than it need be: what the path does not hold fills queues on the way.
fn sending(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.send_auto as u64 * 2 / 3, most: system.send_max as u64, tenths: 13 }
}

/// A receiver's window is about half of its buffer, since memory is counted as it is allocated (tcp_adv_win_scale).
fn receiving(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.recv_auto as u64 / 2, most: system.recv_max as u64, tenths: 10 }
}

fn allows(system: &SystemLimits, name: &str) -> bool {
    system.congestion_allowed.iter().any(|allowed| allowed == name)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A size for people: exact where it is a whole number of KiB, else rounded.
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

fn floor_power_of_two(n: u32) -> u32 {
    match n.checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

fn ceil_power_of_two(n: u64) -> u32 {
    u32::try_from(n.max(1).next_power_of_two()).unwrap_or(1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(mbit: f64, rtt_ms: f64) -> Measured {
        let rtt = Duration::from_secs_f64(rtt_ms / 1e3);
        let rate = mbit * 1e6 / 8.0;
        Measured {
            rtt: RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt },
            alone: rtt + Duration::from_secs_f64(65536.0 / rate),
            read: rate,
            write: None,
            loss: 0.0,
        }
    }

    const STAG: Allowed = Allowed {
        iser: false,
        connections: 8,
        max_burst: 1 << 20,
        first_burst: 262_144,
        initial_r2t: false,
        immediate_data: true,
        outstanding_r2t: 8,
        segment: 262_144,
        window: 128,
        max_transfer: 16 << 20,
        reads: 128,
    };

    fn linux() -> SystemLimits {
        SystemLimits {
            send_auto: 4 << 20,
            recv_auto: 6 << 20,
            send_max: 212_992,
            recv_max: 212_992,
            congestion: "cubic".into(),
            congestion_allowed: vec!["reno".into(), "cubic".into()],
        }
    }

    #[test]
    fn every_path_gets_twice_what_it_holds_under_way() {
        for (mbit, rtt) in
            [(1000.0, 0.05), (1000.0, 1.0), (1000.0, 23.0), (10_000.0, 23.0), (100.0, 140.0), (1000.0, 140.0)]
        {
            for iser in [false, true] {
                let measured = path(mbit, rtt);
                let plan = plan(&measured, &Allowed { iser, ..STAG }, &linux());
                let held = (mbit * 1e6 / 8.0 * rtt / 1e3) as u64;
                assert!(plan.holds.abs_diff(held) <= 1 + held / 1000, "{mbit} {rtt}: {plan:?}");
                let given = u64::from(plan.io) * u64::from(plan.depth) * u64::from(plan.sessions);
                let bounded = plan.sessions == 8 || plan.depth == 128;
                assert!(given >= 2 * held || bounded, "{mbit} Mb/s, {rtt} ms: {given} of {held}");
                assert!(u32::from(plan.depth) <= STAG.window && (4..=128).contains(&plan.depth));
                assert!((65_536..=1 << 20).contains(&plan.io) && plan.io.is_power_of_two());
            }
        }
    }

    #[test]
    fn a_gigabit_over_1400_miles_needs_more_than_defaults_have() {
        let tcp = plan(&path(1000.0, 23.0), &STAG, &linux());
        // 2.875 MB on their way: 64 KiB at a depth of 32 are 2.1 MB.
        assert_eq!(tcp.holds, 2_875_000);
        assert!(u64::from(tcp.io) * u64::from(tcp.depth) >= 2 * tcp.holds);
        assert_eq!((tcp.settings.initial_r2t, tcp.settings.immediate_data), (Some(false), Some(true)));
        assert!(tcp.settings.first_burst.unwrap() >= tcp.io, "writes go unasked");
        let iser = plan(&path(1000.0, 23.0), &Allowed { iser: true, connections: 1, ..STAG }, &linux());
        assert!(iser.under_way > tcp.under_way, "fetched writes travel twice");
        assert!(iser.settings.reads.unwrap() >= 16);
    }

    #[test]
    fn a_target_that_wants_to_be_asked_has_twice_as_much_under_way() {
        let asked = plan(&path(1000.0, 23.0), &Allowed { initial_r2t: true, ..STAG }, &linux());
        let unasked = plan(&path(1000.0, 23.0), &STAG, &linux());
        assert_eq!(asked.under_way, 2 * unasked.under_way);
        assert!(asked.advice.iter().any(|advice| advice.contains("InitialR2T")));
    }

    #[test]
    fn what_one_socket_does_not_carry_several_do() {
        // 21.9 MB are needed; sockets that grow by themselves keep 2.7 MiB of what is sent on their way.
        let wide = plan(&path(1000.0, 140.0), &STAG, &linux());
        assert_eq!(wide.settings.connections, Some(8));
        assert_eq!((wide.settings.send_buffer, wide.settings.recv_buffer), (None, None));
        assert!(wide.advice.iter().any(|advice| advice.contains("tcp_rmem")));
        // Over iSER a session has one connection: there are several sessions.
        let iser = plan(&path(1000.0, 140.0), &Allowed { iser: true, connections: 1, ..STAG }, &linux());
        assert_eq!((iser.settings.connections, iser.sessions), (Some(1), 8));
        // A system that gives large ones to whoever asks is asked.
        let roomy = SystemLimits { send_max: 32 << 20, recv_max: 64 << 20, ..linux() };
        let fixed = plan(&path(1000.0, 140.0), &STAG, &roomy);
        assert_eq!(fixed.settings.connections, Some(1));
        assert!(u64::from(fixed.settings.recv_buffer.unwrap()) >= fixed.holds);
        // The kernel doubles it, and two thirds of that are on their way: no more than is needed.
        let sent = u64::from(fixed.settings.send_buffer.unwrap()) * 4 / 3;
        assert!((fixed.holds..2 * fixed.holds).contains(&sent), "{sent}");
    }

    #[test]
    fn fixed_buffers_that_are_shorter_than_what_grows_are_not_asked_for() {
        // net.core.rmem_max is 208 KiB on most systems: a socket that asks for that is worse off than one that does not.
        let plan = plan(&path(1000.0, 30.0), &STAG, &linux());
        assert_eq!((plan.settings.send_buffer, plan.settings.recv_buffer), (None, None));
    }

    #[test]
    fn loss_is_met_by_a_congestion_control_that_bears_it_or_by_more_connections() {
        let lossy = Measured { loss: 1e-4, ..path(1000.0, 23.0) };
        assert_eq!(plan(&lossy, &STAG, &linux()).settings.connections, Some(4));
        let mut system = SystemLimits { recv_auto: 32 << 20, send_auto: 16 << 20, ..linux() };
        system.congestion_allowed.push("bbr".into());
        let with = plan(&lossy, &STAG, &system);
        assert_eq!((with.settings.congestion.as_deref(), with.settings.connections), (Some("bbr"), Some(1)));
        // On a short path nobody minds.
        assert_eq!(plan(&path(1000.0, 0.2), &STAG, &system).settings.congestion, None);
    }

    #[test]
    fn a_narrow_target_is_used_as_far_as_it_goes() {
        let narrow = Allowed {
            window: 4,
            max_transfer: 65_536,
            max_burst: 65_536,
            first_burst: 8192,
            connections: 1,
            outstanding_r2t: 1,
            ..STAG
        };
        let plan = plan(&path(1000.0, 23.0), &narrow, &linux());
        assert_eq!((plan.io, plan.depth, plan.sessions), (65_536, 4, 8));
        assert_eq!(plan.settings.outstanding_r2t, Some(1));
        assert!(plan.settings.max_burst.unwrap() <= 65_536);
        assert!(plan.advice.iter().any(|advice| advice.contains("queue-depth")));
    }

    #[test]
    fn a_slow_unit_counts_like_a_long_path() {
        let near = Measured { alone: Duration::from_millis(8), ..path(1000.0, 0.1) };
        let plan = plan(&near, &STAG, &linux());
        assert!(plan.under_way >= 2_000_000, "{plan:?}");
        assert!(plan.holds < 20_000);
    }

    #[test]
    fn no_input_makes_it_panic_or_ask_for_nothing() {
        let odd = [0.0, 1.0, 1e12, f64::INFINITY, f64::NAN];
        for read in odd {
            for loss in odd {
                for rtt in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)] {
                    let rtts = RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt };
                    let measured = Measured { rtt: rtts, alone: rtt, read, write: Some(read), loss };
                    for most in [0, 1, 511, u32::MAX] {
                        let allowed = Allowed {
                            window: most,
                            max_transfer: most,
                            first_burst: most,
                            max_burst: most,
                            connections: 0,
                            reads: 0,
                            ..STAG
                        };
                        let plan = plan(&measured, &allowed, &SystemLimits::default());
                        assert!(plan.depth >= 1 && plan.io >= 1 && plan.sessions >= 1);
                    }
                }
            }
        }
    }

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let mut times: Vec<Duration> = (1..=10).rev().map(Duration::from_millis).collect();
        let rtt = RoundTrips::of(&mut times).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(rtt, RoundTrips { least: ms(1), p50: ms(5), p90: ms(9), most: ms(10) });
        assert_eq!(RoundTrips::of(&mut []), None);
    }
}
